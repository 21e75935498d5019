"""Parse tool calls with one pair of marks for each argument: Qwen3-Coder, Seed-OSS, MiniMax, GLM.

The tool's schema gives a value's type: strings are read as they are written, other values as JSON if they are JSON.
`xml_dialects` has the marks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from inflight.frontend.parsers.forced_calls import forced_by
from inflight.frontend.parsers.json_scanner import JsonScanner
from inflight.frontend.parsers.json_values import as_json
from inflight.frontend.parsers.parser_choice import Tool
from inflight.frontend.parsers.pull_parser import PullParser, Steps
from inflight.frontend.parsers.tool_format import ToolFormat
from inflight.frontend.parsers.tool_schema import JsonType, ToolSchema, tool_schema
from inflight.frontend.parsers.xml_dialects import GLM45, MINIMAX_M2, QWEN3_CODER, SEED_OSS, Dialect
from inflight.frontend.parsers.xml_grammar import call_syntax

_A_NAME = re.compile(r"[\w.:-]+")
_EMPTY_SCHEMA = ToolSchema({})  # of an unknown tool


class XmlCallParser(PullParser):
    def __init__(self, dialect: Dialect, tools: Sequence[Tool]):
        super().__init__()
        self._dialect = dialect
        self._has_broken_json = False
        self._schemas = {tool.name: tool_schema(tool.parameters) for tool in tools}

    def walk(self) -> Steps[None]:
        dialect = self._dialect
        marks = tuple(filter(None, (dialect.opens, dialect.call)))  # some models omit the outer mark
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
        """Parse a call. Return False if there is none; the consumed text is content, after `mark`."""
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
        if (yield from self._parameters(self._schemas.get(name.strip(), _EMPTY_SCHEMA))):
            self.arguments("}")
        return True

    def _parameters(self, schema: ToolSchema) -> Steps[bool]:
        """Parse parameters. Return False if the answer ends within them."""
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
                self.arguments(between)
                self.cut_off_name(key)
                return False
            if dialect.value:
                yield from self.white()
                yield from self.literal(dialect.value)
            self.arguments(f"{between}{json.dumps(key.strip(), ensure_ascii=False)}: ")
            between = ", "
            if not (yield from self._value(schema.types_of(key.strip()))):
                return False

    def _value(self, types: frozenset[JsonType]) -> Steps[bool]:
        yield from self.literal("\n")
        if types != {"string"}:
            text, is_whole = yield from self._json_or_text()
            self.arguments(as_json(text, types))
            return is_whole
        self.arguments('"')
        writer = _StringWriter(self.arguments)
        if not (yield from self.until((self._dialect.value_end,), writer.write)):
            return False
        self.arguments('"')
        return True

    def _json_or_text(self) -> Steps[tuple[str, bool]]:
        """Return a value as it is written, and whether its end mark came.

        A mark within a string of a list or an object is text if that string ends before the answer does. After one
        string without an end, the search for it is not repeated.
        """
        mark, scanner = self._dialect.value_end, JsonScanner()
        text, end = yield from self.collect_until((mark,))
        scanner.feed(text.lstrip())
        pieces = [text]
        while end and scanner.is_within_string and not self._has_broken_json:
            text, next_end = yield from self.collect_until((mark,))
            pieces.append(text)
            if not next_end:
                self._has_broken_json = True
                self.put_back(mark.join(pieces[1:]))
                return pieces[0], True
            scanner.feed(mark + text)
        return mark.join(pieces), bool(end)


class _StringWriter:
    """Write the inside of a string as JSON, piece by piece, without a newline at its end, which is the format's."""

    def __init__(self, emit: Callable[[str], None]):
        self._emit = emit
        self._newline = ""  # withheld

    def write(self, text: str) -> None:
        text = self._newline + text
        self._newline = "\n" if text.endswith("\n") else ""
        self._emit(json.dumps(text.removesuffix("\n"), ensure_ascii=False)[1:-1])


def _format(dialect: Dialect, in_template: tuple[str, ...]) -> ToolFormat:
    # A dialect whose values have a mark of their own is made of special tokens; the others' inner marks are plain text.
    inner = (dialect.parameter, dialect.key_end, dialect.value, dialect.value_end) if dialect.value else ()
    return ToolFormat(
        lambda tools: XmlCallParser(dialect, tools),
        marks=(dialect.opens, dialect.closes, *inner),
        grammars=forced_by(call_syntax(dialect)),
        in_template=in_template,
        in_calls=(dialect.opens,),
    )


QWEN3_CODER_FORMAT = _format(QWEN3_CODER, ("<tool_call>", "<function="))
SEED_OSS_FORMAT = _format(SEED_OSS, ("<seed:tool_call>",))
MINIMAX_M2_FORMAT = _format(MINIMAX_M2, ("<minimax:tool_call>",))
GLM45_FORMAT = _format(GLM45, ("<tool_call>", "<arg_key>"))
