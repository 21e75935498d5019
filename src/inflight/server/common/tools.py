"""Tools: their schema in bodies, which of them may be called, and how templates show them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from inflight.counted import shortened
from inflight.frontend.parsers.parser_choice import Tool, ToolChoice
from inflight.server.common.fields import JsonObject, Name, Text
from inflight.server.common.schemas import schema_text
from inflight.server.errors import invalid

if TYPE_CHECKING:
    from inflight.server.common.conversation import ChatBody

MAX_TOOLS = 512


class FunctionSpec(Struct, kw_only=True, forbid_unknown_fields=True):
    """parameters: JSON schema of its arguments; without, there are none. strict: arguments are valid under it."""

    name: Name
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class ToolSpec(Struct, kw_only=True):
    """A function that may be called; other fields of it (cache_control) change no token."""

    type: Literal["function"]
    function: FunctionSpec


Tools = Annotated[list[ToolSpec], Meta(max_length=MAX_TOOLS)]
Functions = Annotated[list[FunctionSpec], Meta(max_length=MAX_TOOLS)]


class FunctionName(Struct, forbid_unknown_fields=True):
    name: Name


class NamedTool(Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    function: FunctionName


class AllowedTool(Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    function: FunctionName


class AllowedToolsInside(Struct, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedTools(Struct, tag_field="type", tag="allowed_tools", forbid_unknown_fields=True):
    """Some of the tools may be called; all are shown to the model."""

    allowed_tools: AllowedToolsInside


ToolChoiceSpec = Literal["none", "auto", "required", "any"] | NamedTool | AllowedTools
FunctionChoice = Literal["none", "auto"] | FunctionName


class CalledFunction(Struct):
    """arguments: JSON text, as answers have it, or the object itself."""

    name: Name
    arguments: Text | JsonObject | None = None


class CalledCustomTool(Struct):
    """input: text of any form."""

    name: Name
    input: Text = ""


class CalledTool(Struct):
    """A call in an assistant's message, as answers have them: of a function, or another server's of a custom tool."""

    function: CalledFunction | None = None
    id: Name | None = None
    type: Literal["function", "custom"] = "function"
    custom: CalledCustomTool | UnsetType = UNSET


_IS_OBJECT = msgspec.json.Decoder(dict[str, Raw])


def arguments_object(arguments: str) -> Any:
    """Return a call's arguments for answers that show an object, on one line: answers may be lines of JSON. Text of a
    model that is none, or was cut off, stands in it as text."""
    if not arguments.strip():
        return {}
    try:
        _IS_OBJECT.decode(arguments)
        return Raw(msgspec.json.format(arguments.encode(), indent=-1))
    except (msgspec.MsgspecError, RecursionError):
        return {"INVALID_JSON": arguments}


# -- what may be called ------------------------------------------------------------------------------------------------

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
        raise invalid("tools and functions are both given; give tools only.", "functions")
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
