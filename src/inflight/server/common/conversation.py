"""A conversation: the body that all chat APIs become, its messages as chat templates read them, and its tools."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, UnsetType

from inflight.core.types.sampling import MAX_SOURCE_CHARS
from inflight.counted import shortened
from inflight.frontend.parsers.parser_choice import Tool, ToolChoice
from inflight.server.common.fields import (
    MAX_MESSAGES,
    AllowedTools,
    CalledFunction,
    CalledTool,
    ChatSettings,
    Count,
    FunctionChoice,
    FunctionName,
    Functions,
    FunctionSpec,
    Name,
    NamedTool,
    ReasoningEffort,
    TemplateVariables,
    Text,
    ToolChoiceSpec,
    Tools,
    ToolSpec,
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


MAX_SCHEMA_DEPTH = 64  # values within one another
MAX_SCHEMA_BYTES = 1 << 20  # of all tools of a call
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(frozen=True, slots=True)
class AskedTools:
    """shown: as templates read them. callable: those that may be called. old: the body says `functions`."""

    shown: tuple[dict[str, Any], ...] = ()
    callable: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice("none")  # noqa: RUF009  (frozen)
    old: bool = False


def tools_of(body: ChatBody) -> AskedTools:
    """Return the tools of a body: none are shown where none may be called. Raises ApiError."""
    if body.tools and body.functions:
        raise invalid("tools and functions both say what may be called; give tools.", "functions")
    old = bool(body.functions) or body.function_call is not None
    if old:
        specs = body.functions or []
        places = [f"functions[{number}]" for number in range(len(specs))]
    else:
        specs = [one.function for one in body.tools or ()]
        places = [f"tools[{number}].function" for number in range(len(specs))]
    tools = _checked(specs, places)
    choice = _function_choice(body, tools) if old else _tool_choice(body, tools)
    if choice.mode == "none":
        return AskedTools(old=old)
    allowed = tuple(one for one in tools if not choice.names or one.name in choice.names)
    return AskedTools(template_tools(specs), allowed, choice, old)


def template_tools(specs: list[FunctionSpec]) -> tuple[dict[str, Any], ...]:
    """Return tools in the form that models were trained on, which has no field of strictness."""
    return tuple({"type": "function", "function": _shown(one)} for one in specs)


def specs_of(tools: list[ToolSpec] | None) -> list[FunctionSpec]:
    """Return the functions of tools. Raises ApiError."""
    specs = [one.function for one in tools or ()]
    _checked(specs, [f"tools[{number}].function" for number in range(len(specs))])
    return specs


def _shown(spec: FunctionSpec) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": spec.name}
    if spec.description is not None:
        shown["description"] = spec.description
    shown["parameters"] = {"type": "object", "properties": {}} if spec.parameters is None else spec.parameters
    return shown


def _checked(specs: list[FunctionSpec], places: list[str]) -> tuple[Tool, ...]:
    tools: dict[str, Tool] = {}
    total = 0
    for spec, place in zip(specs, places, strict=True):
        if not _NAME.fullmatch(spec.name):
            raise invalid(
                f"{place}.name is {shortened(spec.name)!r}, which is no name of a tool; give 1 to 128 letters, digits, "
                "'_', '-', '.' and ':'.",
                f"{place}.name",
                "invalid_value",
            )
        if spec.name in tools:
            raise invalid(
                f"{place}.name is {spec.name!r}, as another tool's before it; names must differ.", f"{place}.name"
            )
        schema = schema_text(spec.parameters or {"type": "object", "properties": {}}, f"{place}.parameters")
        total += len(schema)
        if total > MAX_SCHEMA_BYTES:
            raise invalid(
                f"The parameters of the tools up to {place} have {total:,} characters as JSON, and all together may "
                f"have {MAX_SCHEMA_BYTES:,}; send fewer tools, or smaller schemas.",
                place,
            )
        tools[spec.name] = Tool(spec.name, schema, bool(spec.strict))
    return tuple(tools.values())


def _tool_choice(body: ChatBody, tools: tuple[Tool, ...]) -> ToolChoice:
    asked = body.tool_choice
    parallel = body.parallel_tool_calls is not False
    if not tools:
        if asked not in (None, "none", "auto"):
            raise invalid("tool_choice asks for a call, but there are no tools; give some.", "tool_choice")
        return ToolChoice("none")
    if isinstance(asked, NamedTool):
        return ToolChoice("named", _known((asked.function.name,), tools, "tool_choice"), parallel=False)
    if isinstance(asked, AllowedTools):
        names = tuple(one.function.name for one in asked.allowed_tools.tools)
        return ToolChoice(asked.allowed_tools.mode, _known(names, tools, "tool_choice"), parallel)
    return ToolChoice("required" if asked == "any" else asked or "auto", (), parallel)  # "any" is Mistral's word


def _function_choice(body: ChatBody, tools: tuple[Tool, ...]) -> ToolChoice:
    """Return the choice that `function_call` asks for. Of functions, one was called at a time."""
    asked = body.function_call
    if isinstance(asked, FunctionName):
        return ToolChoice("named", _known((asked.name,), tools, "function_call"), parallel=False)
    return ToolChoice("none" if not tools or asked == "none" else "auto", parallel=False)


def _known(names: tuple[str, ...], tools: tuple[Tool, ...], field: str) -> tuple[str, ...]:
    known = {one.name for one in tools}
    for name in names:
        if name not in known:
            some = ", ".join(sorted(known)[:8]) or "none"
            raise invalid(
                f"{field} names {shortened(name)!r}, which is none of the tools; there {'is' if not known else 'are'} "
                f"{some}.",
                field,
            )
    return names


def check_offered(path: str, defer_loading: bool | None, allowed_callers: list[str] | None) -> None:
    """Refuse a tool that is not to be shown to the model, or that only programs may call. Raises ApiError."""
    if defer_loading:
        raise invalid(f"{path}.defer_loading is true, but all tools are shown to the model.", f"{path}.defer_loading")
    if allowed_callers is not None and "direct" not in allowed_callers:
        sentence = f"{path}.allowed_callers leaves out 'direct', and no program calls tools here."
        raise invalid(sentence, f"{path}.allowed_callers")


def schema_text(schema: dict[str, Any] | str, place: str) -> str:
    """Return a JSON schema as text. Raises ApiError where it is too long, too deep, or refers to other documents."""
    if isinstance(schema, str):
        check_length(schema, place)
        try:
            schema = msgspec.json.decode(schema, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise invalid(f"{place} is not a schema in JSON: {shortened(str(error))}.", place) from None
    check_schema(schema, place)
    text = msgspec.json.encode(schema).decode()
    check_length(text, place)
    return text


def check_schema(schema: Any, place: str) -> None:
    """Bound the depth, and refuse references to other documents, since nothing is fetched. Whether a reference by `$id`
    names a part of this one is known where schemas are compiled."""
    left: list[tuple[Any, str, int]] = [(schema, place, 1)]
    has_addresses = False
    remote: tuple[str, str] | None = None
    while left:
        value, where, depth = left.pop()
        if depth > MAX_SCHEMA_DEPTH:
            raise invalid(
                f"{place} is nested {depth} deep at {shortened(where)}, and a schema may be {MAX_SCHEMA_DEPTH}; make "
                "it flatter.",
                place,
            )
        if isinstance(value, list):
            left += [(one, f"{where}[{number}]", depth + 1) for number, one in enumerate(value)]
        elif isinstance(value, dict):
            reference = value.get("$ref")
            if isinstance(reference, str) and not reference.startswith("#"):
                remote = remote or (reference, where)
            has_addresses |= any(isinstance(value.get(name), str) for name in ("$id", "id"))
            left += [(one, f"{where}.{name}", depth + 1) for name, one in value.items()]
    if remote is not None and not has_addresses:
        reference, where = remote
        raise invalid(
            f"{place} refers to {shortened(reference)!r} ($ref at {shortened(where)}), and schemas are not fetched; "
            "put it into $defs and refer to it as #/$defs/….",
            place,
        )


def check_length(source: str, place: str, most: int = MAX_SOURCE_CHARS) -> None:
    if len(source) > most:
        raise invalid(f"{place} has {len(source):,} characters, and at most {most:,} are read; shorten it.", place)
