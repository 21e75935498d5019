"""Tools in a body: functions that the model may call, which it is to call, and calls that it made before.

Knows OpenAI's shapes, today's and the older `functions`; what names and schemas may be, `preprocessing.tools` knows.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from inflight.server.bodies.types import JsonObject, Name, Text

MOST_TOOLS = 512


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


Tools = Annotated[list[ToolSpec], Meta(max_length=MOST_TOOLS)]
Functions = Annotated[list[FunctionSpec], Meta(max_length=MOST_TOOLS)]


class FunctionName(Struct, forbid_unknown_fields=True):
    name: Name


class NamedTool(Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    function: FunctionName


class AllowedTool(Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    function: FunctionName


class AllowedToolsInside(Struct, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Meta(min_length=1, max_length=MOST_TOOLS)]


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
