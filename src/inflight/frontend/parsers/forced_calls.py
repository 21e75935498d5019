"""Write grammars that force tool calls, in llguidance's Lark, from a format's `CallSyntax`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from inflight.core.types.sampling import Grammar
from inflight.frontend.parsers.lark import Lark, no, regex, without
from inflight.frontend.parsers.parser_choice import Tool, ToolChoice
from inflight.frontend.parsers.tool_format import AnswerGrammars
from inflight.frontend.parsers.tool_schema import SchemaError, ToolSchema

NAME = "{name}"  # replaced, never formatted: a name may hold braces
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_WHITE = regex(r"\n{1,2}")


def json_arguments(lark: Lark, schema: ToolSchema) -> str:
    return lark.json(schema.root)


class CallSyntax(Struct, frozen=True):
    """The syntax of a forced call: `begin`, arguments, `end`.

    Attributes:
        begin: Before the arguments; NAME stands for the tool's name.
        end: After the arguments.
        opens: Before all calls of an answer.
        closes: After all calls of an answer.
        separator: Between two calls.
        arguments: Returns an expression of the arguments that a schema allows; raises SchemaError.
        triggers: Texts that the parser reads as the beginning of calls; the first one is forced.
        at_begin: Pattern that the parser reads as a call at the answer's start.
        goes_on: Pattern that the parser reads as a call after a call.
        may_follow: A mark that may follow calls.
        names: Pattern of callable tools' names.
    """

    begin: str
    end: str = ""
    opens: str = ""
    closes: str = ""
    separator: str = ""
    arguments: Callable[[Lark, ToolSchema], str] = json_arguments
    triggers: tuple[str, ...] = ()
    at_begin: str = ""
    goes_on: str = ""
    may_follow: str = ""
    names: str = r"[\w.:-]+"


def forced_by(syntax: CallSyntax) -> Callable[[Mapping[str, int]], AnswerGrammars]:
    return partial(CallGrammars, syntax)


class CallGrammars:
    """Write the grammars of one format. mark_ids: token ids of the marks that are tokens."""

    def __init__(self, syntax: CallSyntax, mark_ids: Mapping[str, int]):
        self._syntax = syntax
        self._mark_ids = mark_ids

    def required(self, tools: Sequence[Tool], choice: ToolChoice) -> Grammar:
        lark = Lark(self._mark_ids)
        return Grammar("lark", lark.grammar(f"{lark.terminal(_WHITE)}? {self._calls(lark, tools, choice)}"))

    def or_content(self, tools: Sequence[Tool], choice: ToolChoice, content: str) -> Grammar:
        lark = Lark(self._mark_ids)
        either = f"{self._calls(lark, tools, choice)} | {content_of(lark, content)}"
        return Grammar("lark", lark.grammar(f"{lark.terminal(_WHITE)}? ({either})"))

    def free(self, tools: Sequence[Tool], choice: ToolChoice) -> Grammar:
        syntax, lark = self._syntax, Lark(self._mark_ids)
        trigger, text = syntax.triggers[0], without(*syntax.triggers)
        first = f"{text} & {no(f'(?s:{syntax.at_begin}.*)')}" if syntax.at_begin else text
        rest = f"{text} & {no(f'(?s:{syntax.goes_on}.*)')}" if syntax.goes_on else text
        begun = self._calls(lark, tools, choice, trigger)
        begun += f" ({lark.text(syntax.may_follow)})?" if syntax.may_follow else ""
        behind = f"({lark.ended(rest, trigger)} {begun})*" if choice.parallel else ""
        behind += " " + lark.terminal(rest)
        either = [lark.terminal(first), f"{lark.ended(first, trigger)} {begun} {behind}"]
        if not (syntax.opens + syntax.begin).startswith(trigger):  # the trigger is not part of the call: optional
            either.append(f"{begun} {behind}")
        return Grammar("lark", lark.grammar(" | ".join(either)))

    def _calls(self, lark: Lark, tools: Sequence[Tool], choice: ToolChoice, written: str = "") -> str:
        return calls_of(lark, self._syntax, tools, choice, written)


def calls_of(lark: Lark, syntax: CallSyntax, tools: Sequence[Tool], choice: ToolChoice, written: str = "") -> str:
    """Return a rule of one call, or of several if the choice allows them.

    Args:
        lark: The grammar.
        syntax: The format's.
        tools: That may be called.
        choice: Of tools.
        written: Beginning of the first call that precedes the rule.

    Raises:
        SchemaError: A tool's name or schema cannot be forced.
    """
    forced, begins = choice.mode in ("required", "named"), syntax.opens + syntax.begin
    firsts, others = [], []
    for tool in tools:
        if not re.fullmatch(syntax.names, tool.name):
            raise SchemaError(f"The tool name {tool.name!r} cannot be written in this call format; rename the tool.")
        behind = lark.rule(f"{_arguments(lark, syntax, tool, forced)} {lark.text(syntax.end)}")
        firsts.append(f"{lark.text(begins.replace(NAME, tool.name).removeprefix(written))} {behind}")
        others.append(f"{lark.text(syntax.begin.replace(NAME, tool.name))} {behind}")
    first, closes = lark.rule(" | ".join(firsts)), lark.text(syntax.closes)
    if not choice.parallel:
        return lark.rule(f"{first} {closes}")
    return lark.rule(f"{first} ({lark.text(syntax.separator)} {lark.rule(' | '.join(others))})* {closes}")


def content_of(lark: Lark, schema: str) -> str:
    """Return a rule of an answer in JSON. Raises SchemaError."""
    try:
        return lark.json(msgspec.json.decode(schema, type=dict[str, Any]))
    except (msgspec.MsgspecError, RecursionError):
        raise SchemaError("The answer's schema is no JSON object that can be read.") from None


def _arguments(lark: Lark, syntax: CallSyntax, tool: Tool, forced: bool) -> str:
    schema = _schema_of(tool) if tool.strict or forced else _ANY_OBJECT
    try:
        return syntax.arguments(lark, ToolSchema(schema))
    except (SchemaError, RecursionError) as error:
        why = "is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise SchemaError(
            f"The schema of the tool {tool.name!r} {why}; say it otherwise, or leave the call to the model."
        ) from None


def _schema_of(tool: Tool) -> Mapping[str, Any]:
    """Return the schema of the arguments, which are always an object. Raises SchemaError."""
    try:
        schema = msgspec.json.decode(tool.parameters, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        raise SchemaError(f"The schema of the tool {tool.name!r} is no JSON object that can be read.") from None
    if schema.get("type", "object") != "object":
        raise SchemaError(f"The schema of the tool {tool.name!r} is not of the type object, as all arguments are.")
    return schema if "$ref" in schema else {**schema, "type": "object"}
