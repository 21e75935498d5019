"""A conversation: the body that all chat APIs become, and its messages as chat templates read them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, UnsetType

from inflight.counted import shortened
from inflight.server.common.fields import (
    MAX_MESSAGES,
    ChatSettings,
    Count,
    Name,
    ReasoningEffort,
    TemplateVariables,
    Text,
)
from inflight.server.common.tools import (
    CalledFunction,
    CalledTool,
    FunctionChoice,
    Functions,
    ToolChoiceSpec,
    Tools,
)
from inflight.server.errors import invalid


class TextPart(Struct, tag_field="type", tag="text"):
    """A part of a message's content. What else clients write into it (cache_control) changes no token."""

    text: Text


class InputTextPart(TextPart, tag="input_text"):
    """The same by the name that /v1/responses has for it."""


class OutputTextPart(TextPart, tag="output_text"):
    """The same in an earlier answer of /v1/responses."""


class RefusalPart(Struct, tag_field="type", tag="refusal"):
    """The text by which an earlier answer declined."""

    refusal: Text


ContentPart = TextPart | InputTextPart | OutputTextPart | RefusalPart


class Message(Struct, kw_only=True):
    """One message. What a template makes of name, tool_calls and the like is the model's; fields that no template
    reads (annotations, …) come back with clients' histories and are passed over. refusal: the text of an earlier answer
    that declined, and has no content. function_call, and the role function: from before there were tools. reasoning:
    another name of reasoning_content. audio: an answer that was spoken, which is refused."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | Annotated[list[ContentPart], Meta(max_length=MAX_MESSAGES)] | None = None
    name: Name | None = None
    tool_calls: Annotated[list[CalledTool], Meta(max_length=1024)] | None = None
    tool_call_id: Name | None = None
    function_call: CalledFunction | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None
    refusal: Text | None = None
    audio: None = None


Messages = Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]


class ChatBody(ChatSettings, kw_only=True, forbid_unknown_fields=True):
    """enable_thinking: whether the model is to reason, where its template has a switch for that. thinking_token_budget:
    most tokens of the reasoning, which is ended then."""

    messages: Messages
    tools: Tools | None = None
    tool_choice: ToolChoiceSpec | None = None
    parallel_tool_calls: bool | None = None
    functions: Functions | None = None
    function_call: FunctionChoice | None = None
    reasoning_effort: ReasoningEffort | None = None
    enable_thinking: bool | None = None
    thinking_token_budget: Count | None = None
    chat_template_kwargs: TemplateVariables | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


def template_messages(messages: list[Message], arguments_as_text: bool) -> list[dict[str, Any]]:
    """Return the messages as the template reads them. arguments_as_text: of tool calls; else they are objects.

    Raises:
        ApiError: 400.
    """
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


def arguments_of(called: CalledFunction, as_text: bool, place: str) -> Any:
    """Return a call's arguments as the template takes them: JSON text, or the object. Raises ApiError."""
    given = called.arguments
    if as_text:
        return given if isinstance(given, str) else msgspec.json.encode(given or {}).decode()
    if not isinstance(given, str):
        return given or {}
    if not given.strip():
        return {}
    try:
        return msgspec.json.decode(given, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise invalid(
            f"{place} is no JSON object ({shortened(str(error))}), and this model's chat template takes one; send the "
            "arguments of the call as valid JSON.",
            place,
            "invalid_value",
        ) from None
