"""Calls whose arguments stand between marks one by one, as text: Qwen3-Coder, Seed-OSS, MiniMax, GLM.

Knows that a value's type is what the tool's schema says: a string as it is written, anything else as JSON where it is
JSON. The marks are a dialect's (`xml_dialects`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from inflight.frontend.parsers.forced_calls import forced_by
from inflight.frontend.parsers.json_scanner import JsonScanner
from inflight.frontend.parsers.parser_choice import Tool
from inflight.frontend.parsers.pull_parser import PullParser, Steps
from inflight.frontend.parsers.tool_format import ToolFormat
from inflight.frontend.parsers.tool_schema import JsonType, ToolSchema, tool_schema
from inflight.frontend.parsers.xml_dialects import GLM45, MINIMAX_M2, QWEN3_CODER, SEED_OSS, Dialect
from inflight.frontend.parsers.xml_grammar import call_syntax
from inflight.frontend.parsers.xml_values import as_json

_A_NAME = re.compile(r"[\w.:-]+")
_OF_NOBODY = ToolSchema({})  # of a tool that there is not


class XmlCallParser(PullParser):
    def __init__(self, dialect: Dialect, tools: Sequence[Tool]):
        super().__init__()
        self._dialect = dialect
        self._has_broken_json = False
        self._schemas = {tool.name: tool_schema(tool.parameters) for tool in tools}

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
        if (yield from self._parameters(self._schemas.get(name.strip(), _OF_NOBODY))):
            self.arguments("}")
        return True

    def _parameters(self, schema: ToolSchema) -> Steps[bool]:
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
        """As it is written, and whether its end was. A mark within a string of a list or an object is text, if that
        string ends before the answer does; this is looked for but once without success."""
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
    """Writes a string's inside as JSON as it comes, but for a newline at its end, which is the format's."""

    def __init__(self, tell: Callable[[str], None]):
        self._tell = tell
        self._held = ""

    def write(self, text: str) -> None:
        text = self._held + text
        self._held = "\n" if text.endswith("\n") else ""
        self._tell(json.dumps(text.removesuffix("\n"), ensure_ascii=False)[1:-1])


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
