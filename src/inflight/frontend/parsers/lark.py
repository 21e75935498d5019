"""A grammar that is being written, in Lark as llguidance reads it.

Knows rules, texts, marks and JSON; not what a grammar is for. A mark that is an added token is written by its id, as
models write it: no text matches a special token, and others are text too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from inflight.core.types.sampling import JSON_WHITESPACE

_OPERATORS = re.compile(r"([\\.+*?()|\[\]{}^$])")
_SLASHES = re.compile(r"\\.|[/\n]", re.DOTALL)
_WRITTEN = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}
_CONTROLS = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


class Lark:
    """mark_ids: of the marks that are tokens."""

    def __init__(self, mark_ids: Mapping[str, int]):
        self._mark_ids = mark_ids
        self._names: dict[str, str] = {}  # of rules, by what they are; the same is written once
        self._rules: list[str] = []

    def grammar(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._rules])

    # -- rules ------------------------------------------------------------------------------------------------------

    def rule(self, expression: str) -> str:
        """Its name."""
        return self._rule(expression, "r{}", ": ")

    def terminal(self, expression: str) -> str:
        """A rule of texts alone."""
        return self._rule(expression, "T{}", ": ")

    def named(self) -> str:
        """A name that may be used before `define` says what it is: rules may hold themselves."""
        self._rules.append("")
        return f"d{len(self._rules) - 1}"

    def define(self, name: str, expression: str) -> None:
        self._rules[int(name[1:])] = f"{name}: {expression}"

    def _rule(self, expression: str, name: str, between: str) -> str:
        key = name + between + expression
        if key not in self._names:
            self._names[key] = name.format(len(self._rules))
            self._rules.append(self._names[key] + between + expression)
        return self._names[key]

    # -- what rules are made of -------------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """Strings, and ids of marks between them."""
        parts = re.split("(" + "|".join(map(re.escape, self._mark_ids)) + ")", text) if self._mark_ids else [text]
        return " ".join([self._part(part) for part in parts if part])

    def json(self, schema: Mapping[str, Any]) -> str:
        """A JSON text that is valid under it."""
        spaced = {**schema, "x-guidance": {"whitespace_pattern": JSON_WHITESPACE}}
        return self.rule(f"%json {json.dumps(spaced)}")

    def ended(self, value: str, end: str) -> str:
        """A text of `value`, an expression of terminals none of which holds the first mark of `end`, and that mark."""
        mark = min((one for one in self._mark_ids if one in end), key=end.index, default=None)
        if mark is None:
            return self._rule(f"({value}) {json.dumps(end, ensure_ascii=False)}", "r{}", "[lazy]: ")
        before, _, behind = end.partition(mark)
        value = f"({value}) {json.dumps(before, ensure_ascii=False)}" if before else value
        return " ".join(filter(None, [self.terminal(value), self._part(mark), self.text(behind)]))

    def _part(self, part: str) -> str:
        return f"<[{self._mark_ids[part]}]>" if part in self._mark_ids else json.dumps(part, ensure_ascii=False)


ANY_TEXT = "/(?s:.*)/"


def regex(pattern: str) -> str:
    """A terminal. Slashes of the pattern, escaped there or not, and its newlines are written as the language needs."""
    return "/" + _SLASHES.sub(lambda found: _WRITTEN.get(found.group(), found.group()), pattern) + "/"


def escaped(text: str) -> str:
    """As part of a pattern."""
    return "".join([_CONTROLS.get(one, one) for one in _OPERATORS.sub(r"\\\1", text)])


def no(pattern: str) -> str:
    """Bytes that it does not match, text or not: to be met with a text."""
    return f"~{regex(pattern)}"


def without(*marks: str) -> str:
    """Any text that holds none of these."""
    either = "|".join(map(escaped, marks))
    return f"{ANY_TEXT} & {no(f'(?s:.*)({either})(?s:.*)')}"


def one_of(texts: Sequence[str]) -> str:
    return f"({' | '.join([json.dumps(text, ensure_ascii=False) for text in texts])})"


def members(lark: Lark, written: Sequence[tuple[str, bool]], separator: str = "") -> str:
    """Expressions behind one another, each with whether it must be there; a separator between two. May be empty."""
    comma = lark.text(separator)
    rest = whole = ""  # of the later ones, behind a written one, and while none is written
    for expression, required in reversed(written):
        first = f"{expression} {rest}"
        whole = lark.rule(first if required else f"{first} | {whole}" if whole else f"({first})?")
        rest = lark.rule(f"{comma} {expression} {rest}" if required else f"({comma} {expression})? {rest}")
    return whole
