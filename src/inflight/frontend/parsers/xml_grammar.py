"""Write grammars of tool calls with marks around each argument, in any dialect.

A string is written unquoted and ends at its mark; all other values are JSON. Texts that the parser would read as
another value are excluded: white space that it strips, and strings that look like numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial

from inflight.counted import shortened
from inflight.frontend.parsers.forced_calls import NAME, CallSyntax
from inflight.frontend.parsers.json_values import as_json
from inflight.frontend.parsers.lark import ANY_TEXT, Lark, members, no, one_of, regex, without
from inflight.frontend.parsers.string_texts import string_texts
from inflight.frontend.parsers.tool_schema import Alternative, JsonType, Schema, SchemaError, ToolSchema
from inflight.frontend.parsers.xml_dialects import Dialect

_NO_NEWLINE_AROUND = no(r"(?s:\n.*|.*\n)")
# Excluded from a string if the schema allows other types too: texts that the parser reads as one of those.
_NO_SPACE_AROUND = no(r"(?s:[\s\x1c-\x1f].*|.*[\s\x1c-\x1f])")
_NO_JSON = no(r"(?s:[-0-9\[{].*)|(?i:true|false|null|none)")
_WORDS: Mapping[JsonType, Sequence[str]] = {  # Python's too, as templates show them
    "boolean": ("true", "false", "True", "False"),
    "null": ("null", "None"),
}


def call_syntax(dialect: Dialect) -> CallSyntax:
    opens, closes = f"{dialect.opens}\n" if dialect.call else dialect.opens, dialect.closes
    begin = f"{dialect.call}{NAME}{dialect.name_ends[0]}" + ("\n" if dialect.call else "")
    end = f"{dialect.call_end}\n" if dialect.call_end else ""
    arguments = partial(_arguments, dialect)
    triggers = tuple(filter(None, (dialect.opens, dialect.call)))
    if dialect.around_all:
        return CallSyntax(begin, end, opens, closes, arguments=arguments, triggers=triggers)
    return CallSyntax(opens + begin, end + closes, separator="\n", arguments=arguments, triggers=triggers)


def _arguments(dialect: Dialect, lark: Lark, schema: ToolSchema) -> str:
    arguments = schema.arguments()
    others = schema.others(arguments)
    if others is None:
        named = schema.members(arguments)
        return members(lark, [(_parameter(dialect, lark, schema, one.name, one.schema), one.required) for one in named])
    key = lark.ended(regex(r"[\w.-]{1,64}"), dialect.key_end)
    parameter = f"{lark.text(dialect.parameter)} {key} {_value(dialect, lark, schema, others)}"
    return f"({parameter})*"


def _parameter(dialect: Dialect, lark: Lark, schema: ToolSchema, name: str, of: Schema) -> str:
    if name != name.strip() or dialect.key_end in name or not name:
        raise SchemaError(f"has a property {shortened(name)!r}, whose name cannot be written in this format")
    return f"{lark.text(dialect.parameter + name + dialect.key_end)} {_value(dialect, lark, schema, of)}"


def _value(dialect: Dialect, lark: Lark, schema: ToolSchema, of: Schema) -> str:
    """Return a rule of a value with its marks and the newline after it."""
    begin = ("\n" + dialect.value if dialect.value else "") + dialect.edge
    end, behind = dialect.edge + dialect.value_end, "\n"
    alternatives, types = schema.alternatives(of), schema.types_in(of)
    either, others = [], []
    for one in alternatives:
        if one.type in ("string", None):
            either.append(lark.ended(_text(dialect, one, types), end))
        elif words := _words(one):  # with its end: a text alternative could continue a word
            either.append(lark.ended(one_of(words), end))
        else:
            others.append(one)
    if others:
        either.append(f"{lark.json(schema.whole(_any_of(others)))} {lark.text(end)}")
    return f"{lark.text(begin)} {lark.rule(' | '.join(either))} {lark.text(behind)}"


def _words(one: Alternative) -> Sequence[str]:
    """Return all texts of a value if there are few; else none."""
    if one.values is not None and one.type not in ("array", "object"):
        return [json.dumps(value) for value in one.values]
    return _WORDS.get(one.type, ()) if one.values is None and one.type is not None else ()


def _text(dialect: Dialect, string: Alternative, types: frozenset[JsonType]) -> str:
    """Return terminals of the strings that the parser reads unchanged."""
    if string.values is not None:
        readable = [text for text in string.values if _reads(dialect, text, types)]
        if len(readable) < len(string.values):
            wrong = next(text for text in string.values if text not in readable)
            raise SchemaError(f"allows the text {shortened(wrong)!r}, which would be read as another in this format")
        return one_of(string.values)
    parts = [ANY_TEXT if string.type is None else string_texts(string.schema), without(dialect.value_end)]
    if types != {"string"}:
        parts += [_NO_SPACE_AROUND, _NO_JSON]
    elif not dialect.edge:
        parts.append(_NO_NEWLINE_AROUND)
    return " & ".join(parts)


def _reads(dialect: Dialect, text: str, types: frozenset[JsonType]) -> bool:
    if dialect.value_end in text:
        return False
    if types != {"string"}:
        return as_json(text, types) == json.dumps(text, ensure_ascii=False)
    return bool(dialect.edge) or text == text.removeprefix("\n").removesuffix("\n")


def _any_of(alternatives: Sequence[Alternative]) -> Schema:
    schemas = [one.schema if one.values is not None else {**one.schema, "type": one.type} for one in alternatives]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
