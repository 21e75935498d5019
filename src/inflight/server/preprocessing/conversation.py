"""A body's messages as chat templates read them.

Knows what clients write otherwise than templates: developers, calls of tools as JSON text, functions from before there
were tools, reasoning under two names. How a template writes them, the model knows.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UnsetType

from inflight.server.bodies.chat import ContentPart, Message, RefusalPart
from inflight.server.bodies.tools import CalledFunction, CalledTool
from inflight.server.errors import invalid
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
    if isinstance(message.content, list):
        plain["content"] = [{"type": "text", "text": _text_of(one)} for one in message.content]
    reasoning, refusal = plain.pop("reasoning", None), plain.pop("refusal", None)
    if message.role == "assistant" and not message.content:
        plain["content"] = refusal or ""  # templates look into it, whatever else the answer had
    if reasoning is not None:
        plain.setdefault("reasoning_content", reasoning)
    if calls is not None:
        plain["tool_calls"] = [_call(one, as_text, f"{place}.tool_calls[{number}]") for number, one in enumerate(calls)]
    plain["role"] = _ROLES.get(message.role, message.role)
    return plain


def _text_of(part: ContentPart) -> str:
    return part.refusal if isinstance(part, RefusalPart) else part.text


def _call(call: CalledTool, as_text: bool, place: str) -> dict[str, Any]:
    function = call.function
    if not isinstance(call.custom, UnsetType):  # templates know functions alone: its text is the one argument
        function = CalledFunction(call.custom.name, {"input": call.custom.input})
    if function is None:
        raise invalid(f"{place} has no {call.type}; give one.", f"{place}.{call.type}", "missing_field")
    arguments = arguments_of(function, as_text, f"{place}.function.arguments")
    plain: dict[str, Any] = {"type": "function", "function": {"name": function.name, "arguments": arguments}}
    return plain if call.id is None else {"id": call.id, **plain}


_ROLES = {"developer": "system", "function": "tool"}  # what templates call them
