"""Tools of a conversation: checked, as the template reads them, and as parsers and grammars do.

Knows which names and schemas may be, and what a choice among tools means; not how a model writes a call.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from inflight.counted import shortened
from inflight.frontend.parsers.parser_choice import Tool, ToolChoice
from inflight.server.bodies.chat import ChatBody
from inflight.server.bodies.tools import (
    AllowedTools,
    CalledFunction,
    FunctionName,
    FunctionSpec,
    NamedTool,
    ToolSpec,
)
from inflight.server.errors import invalid
from inflight.server.preprocessing.structured import schema_text

MOST_SCHEMA_BYTES = 1 << 20  # of all tools of a call
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(frozen=True, slots=True)
class AskedTools:
    """shown: as templates read them. callable: those that may be called. old: the body says `functions`."""

    shown: tuple[dict[str, Any], ...] = ()
    callable: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice("none")  # noqa: RUF009  (frozen)
    old: bool = False


def tools_of(body: ChatBody) -> AskedTools:
    """Raises ApiError. Where none may be called, none are shown."""
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
    """In the form that models were trained on, which has no word of strictness."""
    return tuple({"type": "function", "function": _shown(one)} for one in specs)


def specs_of(tools: list[ToolSpec] | None) -> list[FunctionSpec]:
    """Raises ApiError."""
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
        if total > MOST_SCHEMA_BYTES:
            raise invalid(
                f"The parameters of the tools up to {place} have {total:,} characters as JSON, and all together may "
                f"have {MOST_SCHEMA_BYTES:,}; send fewer tools, or smaller schemas.",
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
    """Of functions one was called at a time."""
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


def arguments_of(called: CalledFunction, as_text: bool, place: str) -> Any:
    """A call's arguments as the template takes them: JSON text, or the object. Raises ApiError."""
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
