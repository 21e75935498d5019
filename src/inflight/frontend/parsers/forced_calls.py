"""Grammars that force calls of tools, in Lark as llguidance reads it.

Knows how a format writes a call (`CallSyntax`), and that a mark which is a special token is written by its id, as text
never matches one. Not who asks for calls, or what is computed of a grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from inflight.core.types.grammar import Grammar
from inflight.frontend.parsers.parser_choice import Tool, ToolChoice
from inflight.frontend.parsers.tool_format import NAME, CallSyntax

_ANY_OBJECT = '{"type": "object"}'


class CallGrammars:
    """Of one format. special: ids of the marks that are special tokens."""

    def __init__(self, syntax: CallSyntax, special: Mapping[str, int]):
        self._syntax = syntax
        self._special = special

    def required(self, tools: Sequence[Tool], choice: ToolChoice) -> Grammar:
        return Grammar("lark", "\n".join(["start: WHITE? calls", *self._calls(tools, choice), "WHITE: /\\n{1,2}/"]))

    def or_content(self, tools: Sequence[Tool], choice: ToolChoice, content: str) -> Grammar:
        """Calls, or JSON of the schema `content`."""
        rules = ["start: WHITE? (calls | content)", f"content: %json {content}", *self._calls(tools, choice)]
        return Grammar("lark", "\n".join([*rules, "WHITE: /\\n{1,2}/"]))

    def free(self, tools: Sequence[Tool], choice: ToolChoice) -> Grammar:
        """Any text; but where it begins calls, these are whole ones."""
        first = self._syntax.opens or self._syntax.begin
        trigger = self._trigger(first)
        rest = self._rules(tools, choice, trigger)
        if trigger in self._special:
            head = f"head: TEXT <[{self._special[trigger]}]>"
        else:
            head = f"head[lazy]: TEXT {json.dumps(trigger, ensure_ascii=False)}"
        many = "*" if choice.parallel else "?"
        return Grammar(
            "lark", "\n".join([f"start: (head calls){many} rest", head, "rest: TEXT", *rest, "TEXT: /(?s:.*)/"])
        )

    def _trigger(self, first: str) -> str:
        found = [mark for mark in self._special if first.startswith(mark)]
        return max(found, key=len) if found else first.split(NAME)[0].split("\n")[0]

    def _calls(self, tools: Sequence[Tool], choice: ToolChoice) -> list[str]:
        return self._rules(tools, choice, "")

    def _rules(self, tools: Sequence[Tool], choice: ToolChoice, written: str) -> list[str]:
        """written: what the beginning of the first call has already."""
        syntax, named = self._syntax, range(len(tools))
        either = " | ".join(f"call{number}" for number in named)
        more = f"({self._text(syntax.separator)} (call))*" if choice.parallel else ""
        rules = [f"call: {either}"]
        forced = choice.mode in ("required", "named")
        for number, tool in enumerate(tools):
            schema = tool.parameters if tool.strict or forced else _ANY_OBJECT
            begin, end = syntax.begin.replace(NAME, tool.name), self._text(syntax.end)
            rules.append(f"call{number}: {self._text(begin)} arguments{number} {end}")
            rules.append(f"arguments{number}: %json {schema}")
        if syntax.opens or not written:
            first, opens = "call", self._text(syntax.opens.removeprefix(written))
        else:
            begins = [syntax.begin.replace(NAME, tool.name).removeprefix(written) for tool in tools]
            rules += [f"first{n}: {self._text(begins[n])} arguments{n} {self._text(syntax.end)}" for n in named]
            rules.append("first: " + " | ".join(f"first{number}" for number in named))
            first, opens = "first", ""
        return [f"calls: {opens} {first} {more} {self._text(syntax.closes)}", *rules]

    def _text(self, text: str) -> str:
        """As Lark: strings, and ids of special tokens between them."""
        if not self._special:
            return json.dumps(text, ensure_ascii=False) if text else ""
        parts = re.split("(" + "|".join(map(re.escape, self._special)) + ")", text)
        written = [
            f"<[{self._special[part]}]>" if part in self._special else json.dumps(part, ensure_ascii=False)
            for part in parts
            if part
        ]
        return " ".join(written)
