"""Calls whose arguments stand between marks one by one, as text: Qwen3-Coder, Seed-OSS, MiniMax, GLM.

Knows the marks of each dialect, and that a value's type is what the tool's schema says: a string as it is written,
anything else as JSON where it is JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from inflight.frontend.parsers.parser_choice import Tool
from inflight.frontend.parsers.pull_parser import PullParser, Steps
from inflight.frontend.parsers.tool_format import ToolFormat

_A_NAME = re.compile(r"[\w.:-]+")


class Dialect(Struct, frozen=True):
    """Marks around calls, around a call and its name, around a parameter, its name and its value."""

    opens: str
    closes: str
    call: str
    name_ends: tuple[str, ...]
    call_end: str
    parameter: str
    key_end: str
    value: str
    value_end: str


QWEN3_CODER = Dialect(
    "<tool_call>", "</tool_call>", "<function=", (">",), "</function>", "<parameter=", ">", "", "</parameter>"
)
SEED_OSS = Dialect(
    "<seed:tool_call>", "</seed:tool_call>", "<function=", (">",), "</function>", "<parameter=", ">", "", "</parameter>"
)
MINIMAX_M2 = Dialect(
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    '<invoke name="',
    ('">',),
    "</invoke>",
    '<parameter name="',
    '">',
    "",
    "</parameter>",
)
GLM45 = Dialect(
    "<tool_call>",
    "</tool_call>",
    "",
    ("\n", "<arg_key>", "</tool_call>"),
    "",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
)


class XmlCallParser(PullParser):
    def __init__(self, dialect: Dialect, tools: Sequence[Tool]):
        super().__init__()
        self._dialect = dialect
        self._types = {tool.name: _types_of(tool.parameters) for tool in tools}

    def walk(self) -> Steps[None]:
        dialect = self._dialect
        marks = tuple(filter(None, (dialect.opens, dialect.call)))  # some leave the outer mark out
        while mark := (yield from self.until(marks, self.content)):
            if mark == dialect.call:
                self.put_back(mark)
                mark = ""
            while (yield from self._call(mark)):
                mark = ""
                self.record()
                yield from self.white()
                if (yield from self.literal(dialect.closes)) or not dialect.call:
                    self.recorded()
                    break
                self.put_back(self.recorded())

    def _call(self, mark: str) -> Steps[bool]:
        """False: none follows, and what was consumed is content, behind `mark`."""
        dialect = self._dialect
        self.record()
        yield from self.white()
        if dialect.call and not (yield from self.literal(dialect.call)):
            self.no_call(mark)
            return False
        name, end = yield from self.collect_until(dialect.name_ends)
        if not end or not _A_NAME.fullmatch(name.strip()):
            self.no_call(mark)
            return False
        self.recorded()
        if end in (dialect.parameter, dialect.closes):
            self.put_back(end)
        self.begin_call(name.strip(), "{")
        if (yield from self._parameters(self._types.get(name.strip(), {}))):
            self.arguments("}")
        return True

    def _parameters(self, types: Mapping[str, frozenset[str]]) -> Steps[bool]:
        """False: cut off by the answer's end."""
        dialect, between = self._dialect, ""
        while True:
            yield from self.white()
            if not (yield from self.literal(dialect.parameter)):
                whole = bool((yield from self.next_character()))
                if dialect.call_end:
                    yield from self.literal(dialect.call_end)
                return whole
            key, end = yield from self.collect_until((dialect.key_end,))
            if not end:
                return False
            if dialect.value:
                yield from self.white()
                yield from self.literal(dialect.value)
            self.arguments(f"{between}{json.dumps(key.strip(), ensure_ascii=False)}: ")
            between = ", "
            if not (yield from self._value(types.get(key.strip(), frozenset(("string",))))):
                return False

    def _value(self, types: frozenset[str]) -> Steps[bool]:
        yield from self.literal("\n")
        if types != {"string"}:
            text, end = yield from self.collect_until((self._dialect.value_end,))
            self.arguments(_as_json(text, types))
            return bool(end)
        self.arguments('"')
        writer = _StringWriter(self.arguments)
        if not (yield from self.until((self._dialect.value_end,), writer.write)):
            return False
        self.arguments('"')
        return True


class _StringWriter:
    """Writes a string's inside as JSON as it comes, but for a newline at its end, which is the format's."""

    def __init__(self, tell: Callable[[str], None]):
        self._tell = tell
        self._held = ""

    def write(self, text: str) -> None:
        text = self._held + text
        self._held = "\n" if text.endswith("\n") else ""
        self._tell(json.dumps(text.removesuffix("\n"), ensure_ascii=False)[1:-1])


def _as_json(text: str, types: frozenset[str]) -> str:
    text = text.strip()
    spelled = text.lower() if text.lower() in ("true", "false", "null") else "null" if text == "None" else text
    try:
        value = json.loads(spelled)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    if "string" in types and _type_of(value) not in types:
        return json.dumps(text, ensure_ascii=False)
    return spelled


def _type_of(value: object) -> str:
    names = {bool: "boolean", int: "integer", float: "number", list: "array", dict: "object", str: "text"}
    return names.get(type(value), "null")  # a string in quotes is a string of quotes: not one of the types


def _types_of(parameters: str) -> dict[str, frozenset[str]]:
    """Types of each property that says some; a schema that cannot be read says nothing."""
    try:
        schema = json.loads(parameters)
        properties = schema.get("properties", {}).items()
        return {key: _types_in(value) for key, value in properties}
    except (ValueError, AttributeError, TypeError, RecursionError):
        return {}


def _types_in(schema: Any) -> frozenset[str]:
    if not isinstance(schema, dict):
        return frozenset(("string",))
    named = schema.get("type", [])
    found = {named} if isinstance(named, str) else {one for one in named if isinstance(one, str)}
    for alternative in [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
        found |= _types_in(alternative)
    if "number" in found:
        found.add("integer")
    if not found and "$ref" in schema:
        return frozenset(("object",))
    return frozenset(found or ("string",))


def _format(dialect: Dialect, in_template: tuple[str, ...]) -> ToolFormat:
    # A dialect whose values have a mark of their own is made of special tokens; the others' inner marks are plain text.
    inner = (dialect.parameter, dialect.key_end, dialect.value, dialect.value_end) if dialect.value else ()
    marks = (dialect.opens, dialect.closes, *inner)
    return ToolFormat(lambda tools: XmlCallParser(dialect, tools), marks, in_template=in_template)


QWEN3_CODER_FORMAT = _format(QWEN3_CODER, ("<tool_call>", "<function="))
SEED_OSS_FORMAT = _format(SEED_OSS, ("<seed:tool_call>",))
MINIMAX_M2_FORMAT = _format(MINIMAX_M2, ("<minimax:tool_call>",))
GLM45_FORMAT = _format(GLM45, ("<tool_call>", "<arg_key>"))
