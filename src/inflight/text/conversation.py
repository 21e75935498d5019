"""A conversation as it is handed in: what a chat template makes a prompt of. Knows no template; nothing is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct


class Conversation(Struct, frozen=True):
    """messages: `{"role": …, "content": …}` each, with whatever else the template reads. Content is a string or a list
    of `{"type": "text", "text": …}`; such parts are joined by newlines for templates that take strings only. It may be
    missing where there are `tool_calls`.
    variables: further ones of the template, such as `documents` or `enable_thinking`. Their names may be a client's,
    any strings at all, which is why they come as one mapping.
    tools: descriptions of functions that the model may call.
    add_generation_prompt: end with the beginning of an assistant's message.
    continue_final_message: end with the last message's text instead, so that the model goes on with it.
    """

    messages: Sequence[Mapping[str, Any]]
    variables: Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
