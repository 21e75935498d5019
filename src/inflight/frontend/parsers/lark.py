"""Write a grammar in llguidance's Lark.

A mark that is an added token is written by its id, since text matches no special token.
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
    """A grammar in the making. mark_ids: token ids of the marks that are tokens."""

    def __init__(self, mark_ids: Mapping[str, int]):
        self._mark_ids = mark_ids
        self._names: dict[str, str] = {}  # rules' names by content, so that equal rules are written once
        self._rules: list[str] = []

    def grammar(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._rules])

    # -- rules ------------------------------------------------------------------------------------------------------

    def rule(self, expression: str) -> str:
        """Add a rule; return its name."""
        return self._rule(expression, "r{}", ": ")

    def terminal(self, expression: str) -> str:
        """Add a terminal; return its name."""
        return self._rule(expression, "T{}", ": ")

    def named(self) -> str:
        """Reserve a name for a rule that `define` adds later, for recursive rules."""
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

    # -- expressions ------------------------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """Return an expression of a text, with token ids for its marks."""
        parts = re.split("(" + "|".join(map(re.escape, self._mark_ids)) + ")", text) if self._mark_ids else [text]
        return " ".join([self._part(part) for part in parts if part])

    def json(self, schema: Mapping[str, Any]) -> str:
        """Return a rule of JSON text that is valid under the schema."""
        spaced = {**schema, "x-guidance": {"whitespace_pattern": JSON_WHITESPACE}}
        return self.rule(f"%json {json.dumps(spaced)}")

    def ended(self, value: str, end: str) -> str:
        """Return an expression of `value` followed by `end`.

        Args:
            value: An expression of terminals that do not match the first mark of `end`.
            end: Text with marks.
        """
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
    """Return a terminal of a pattern, with slashes and newlines escaped as Lark requires."""
    return "/" + _SLASHES.sub(lambda found: _WRITTEN.get(found.group(), found.group()), pattern) + "/"


def escaped(text: str) -> str:
    """Escape a text for use in a pattern."""
    return "".join([_CONTROLS.get(one, one) for one in _OPERATORS.sub(r"\\\1", text)])


def no(pattern: str) -> str:
    """Return a terminal of all byte strings that the pattern does not match; intersect it with text."""
    return f"~{regex(pattern)}"


def without(*marks: str) -> str:
    """Return a terminal of any text without these marks."""
    either = "|".join(map(escaped, marks))
    return f"{ANY_TEXT} & {no(f'(?s:.*)({either})(?s:.*)')}"


def one_of(texts: Sequence[str]) -> str:
    return f"({' | '.join([json.dumps(text, ensure_ascii=False) for text in texts])})"


def members(lark: Lark, written: Sequence[tuple[str, bool]], separator: str = "") -> str:
    """Return a rule of a sequence of expressions with a separator between two; may be empty.

    Args:
        lark: The grammar.
        written: Expressions, each with whether it is required.
        separator: Text.
    """
    comma = lark.text(separator)
    rest = whole = ""  # the later expressions, after a first one and without one before
    for expression, required in reversed(written):
        first = f"{expression} {rest}"
        whole = lark.rule(first if required else f"{first} | {whole}" if whole else f"({first})?")
        rest = lark.rule(f"{comma} {expression} {rest}" if required else f"({comma} {expression})? {rest}")
    return whole
