"""A body's messages as chat templates read them.

Knows what clients write otherwise than templates: developers, calls of tools as JSON text, functions from before there
were tools, reasoning under two names. How a template writes them, the model knows.
"""

from __future__ import annotations

from typing import Any

import msgspec

from inflight.server.bodies.chat import Message
from inflight.server.bodies.tools import CalledTool
from inflight.server.preprocessing.tools import arguments_of


def template_messages(messages: list[Message], arguments_as_text: bool) -> list[dict[str, Any]]:
    """arguments_as_text: of tool calls; else they are objects. Raises ApiError."""
    return [_plain(one, arguments_as_text, f"messages[{number}]") for number, one in enumerate(messages)]


def _plain(message: Message, as_text: bool, place: str) -> dict[str, Any]:
    calls = message.tool_calls
    if message.function_call is not None and not calls:
        calls = [CalledTool(message.function_call)]
    plain = {name: value for name, value in msgspec.to_builtins(message).items() if value is not None}
    plain.pop("function_call", None)
    reasoning = plain.pop("reasoning", None)
    if reasoning is not None:
        plain.setdefault("reasoning_content", reasoning)
    if calls is not None:
        plain["tool_calls"] = [_call(one, as_text, f"{place}.tool_calls[{number}]") for number, one in enumerate(calls)]
    plain["role"] = _ROLES.get(message.role, message.role)
    return plain


def _call(call: CalledTool, as_text: bool, place: str) -> dict[str, Any]:
    arguments = arguments_of(call.function, as_text, f"{place}.function.arguments")
    plain: dict[str, Any] = {"type": "function", "function": {"name": call.function.name, "arguments": arguments}}
    return plain if call.id is None else {"id": call.id, **plain}


_ROLES = {"developer": "system", "function": "tool"}  # what templates call them
