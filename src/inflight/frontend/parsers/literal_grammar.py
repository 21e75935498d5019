"""Write grammars of values as literals of a language other than JSON: Python's, Gemma's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from inflight.counted import quoted
from inflight.frontend.parsers.lark import ANY_TEXT, Lark, members, one_of, regex
from inflight.frontend.parsers.string_texts import string_texts
from inflight.frontend.parsers.tool_schema import (
    ANYTHING,
    Alternative,
    Schema,
    SchemaError,
    ToolSchema,
    count_of,
    type_of,
)

_NUMBER = regex(r"-?(0|[1-9][0-9]{0,15})([.][0-9]{1,15})?")  # without an exponent, so that any number is finite
_INTEGER = regex("-?(0|[1-9][0-9]{0,15})")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


class LiteralLanguage(Struct, frozen=True):
    """The literals of one language.

    Attributes:
        string: Returns an expression of a quoted string whose text matches an expression of terminals.
        written: Writes a text as a literal.
        key: Writes a name within an object.
        words: The literals of true, false and null.
    """

    string: Callable[[Lark, str], str]
    written: Callable[[str], str]
    key: Callable[[str], str]
    words: Mapping[str, str]
    comma: str
    colon: str


class LiteralGrammar:
    """The grammar of one tool's arguments."""

    def __init__(self, language: LiteralLanguage, lark: Lark, schema: ToolSchema):
        self._language, self._lark, self._schema = language, lark, schema
        self._of_objects: dict[int, str] = {}  # rules by the id of their schema, which may be recursive

    def members(self, schema: Schema, key: Callable[[str], str], separator: str) -> str:
        """Return a rule of an object's members without brackets. key: writes the text before a member's value."""
        named = self._schema.members(schema)
        written = [(f"{self._lark.text(key(one.name))} {self.value(one.schema)}", one.required) for one in named]
        return members(self._lark, written, separator)

    def value(self, schema: Any) -> str:
        return self._either([self._of(one) for one in self._schema.alternatives(schema)])

    def _of(self, one: Alternative) -> str:
        if one.values is not None:
            return self._either([self._lark.text(self._literal(value)) for value in one.values])
        match one.type:
            case "object" | "array":
                return self._bracketed(one)
            case "string":
                return self._language.string(self._lark, string_texts(one.schema))
            case "number" | "integer":
                return self._number(one)
            case "boolean":
                return one_of([self._language.words["true"], self._language.words["false"]])
            case "null":
                return self._lark.text(self._language.words["null"])
            case None:
                return self._anything()
        raise SchemaError(f"says the type {quoted(one.type)}, which is none")

    def _bracketed(self, one: Alternative) -> str:
        known = self._of_objects.get(id(one.schema))
        if known is None:
            known = self._of_objects[id(one.schema)] = self._lark.named()
            written = self._object(one.schema) if one.type == "object" else self._list(one.schema)
            self._lark.define(known, written)
        return known

    def _object(self, schema: Schema) -> str:
        others, language = self._schema.others(schema), self._language
        if others is None:
            inside = self.members(schema, lambda name: f"{language.key(name)}{language.colon}", language.comma)
        else:
            key = self._language.string(self._lark, regex(r"[\w .-]{1,64}"))
            inside = self._many(f"{key} {self._lark.text(language.colon)} {self.value(others)}", 0, None)
        return f'"{{" {inside} "}}"'

    def _list(self, schema: Schema) -> str:
        first, items = schema.get("prefixItems"), schema.get("items", ANYTHING)
        lowest, highest = count_of(schema, "minItems") or 0, count_of(schema, "maxItems")
        if isinstance(first, list) and first:
            if items is not False and (lowest, highest) != (len(first), len(first)):
                raise SchemaError("says 'prefixItems' of lists of no fixed length, which cannot be enforced here")
            written = [(self.value(one), True) for one in first]
            return f'"[" {members(self._lark, written, self._language.comma)} "]"'
        if items is False:
            highest = 0
        return f'"[" {self._many(self.value(items), lowest, highest)} "]"'

    def _many(self, item: str, lowest: int, highest: int | None) -> str:
        if highest == 0:
            return ""
        more = f"{{{max(0, lowest - 1)},{'' if highest is None else highest - 1}}}"
        some = f"{item} ({self._lark.text(self._language.comma)} {item}){more}"
        return some if lowest > 0 else f"({some})?"

    def _number(self, one: Alternative) -> str:
        said = {key: one.schema[key] for key in _BOUNDS if key in one.schema}
        if said:
            return self._lark.json({"type": one.type, **said})
        return self._lark.terminal(_INTEGER if one.type == "integer" else _NUMBER)

    def _anything(self) -> str:
        """Return a rule of any scalar; values without a schema are not nested."""
        words = [self._language.words[word] for word in ("true", "false", "null")]
        return self._either([self._language.string(self._lark, ANY_TEXT), self._lark.terminal(_NUMBER), one_of(words)])

    def _either(self, expressions: list[str]) -> str:
        return expressions[0] if len(expressions) == 1 else self._lark.rule(" | ".join(expressions))

    def _literal(self, value: Any) -> str:
        language = self._language
        match type_of(value):
            case "object":
                inside = [f"{language.key(key)}{language.colon}{self._literal(one)}" for key, one in value.items()]
                return "{" + language.comma.join(inside) + "}"
            case "array":
                return "[" + language.comma.join(map(self._literal, value)) + "]"
            case "string":
                return language.written(value)
            case "boolean":
                return language.words["true" if value else "false"]
            case "null":
                return language.words["null"]
        return repr(value)


def is_plain_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z_]\w*", text, re.ASCII) is not None
