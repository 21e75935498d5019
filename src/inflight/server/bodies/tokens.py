"""Bodies of /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from inflight.server.bodies.chat import Message
from inflight.server.bodies.common import Body
from inflight.server.bodies.completions import TokenId


class TokenizeBody(Body):
    """Either a prompt, or messages for the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    model: str | None = None
    tokens: list[TokenId]
