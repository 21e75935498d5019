"""Parse `call:name{key:value,…}` between marks, with marks around strings: FunctionGemma and Gemma 4."""

from __future__ import annotations

import json

from inflight.counted import shortened
from inflight.frontend.parsers.forced_calls import NAME, CallSyntax, forced_by
from inflight.frontend.parsers.json_values import json_value
from inflight.frontend.parsers.lark import Lark, without
from inflight.frontend.parsers.literal_grammar import LiteralGrammar, LiteralLanguage, is_plain_name
from inflight.frontend.parsers.pull_parser import PullParser, Steps
from inflight.frontend.parsers.tool_format import ToolFormat
from inflight.frontend.parsers.tool_schema import SchemaError, ToolSchema

_MAX_DEPTH = 64  # of nested values; deeper ones are passed on as text


class GemmaParser(PullParser):
    """Parse calls between `begin` and `end`, with `quote` around strings."""

    def __init__(self, begin: str, end: str, quote: str):
        super().__init__()
        self._begin, self._end, self._quote = begin, end, quote

    def walk(self) -> Steps[None]:
        while mark := (yield from self.until((self._begin,), self.content)):
            self.record()
            yield from self.white()
            is_call = bool((yield from self.literal("call:")))
            name, brace = (yield from self.collect_until(("{", self._end))) if is_call else ("", "")
            if brace != "{" or not name.strip():
                self.no_call(mark)
                continue
            self.recorded()
            self.put_back(brace)
            self.begin_call(name.strip())
            if (yield from self._value(0)):
                yield from self.white()
                yield from self.literal(self._end)

    def _value(self, depth: int) -> Steps[bool]:
        """Parse one value and emit it as JSON. Return False if the answer ends within it."""
        yield from self.white()
        if (yield from self.literal(self._quote)):
            return (yield from self._string())
        opening = yield from self.next_character()
        if opening in ("{", "[") and depth < _MAX_DEPTH:
            return (yield from self._items(opening, depth))
        return (yield from self._bare())

    def _items(self, opening: str, depth: int) -> Steps[bool]:
        closing = "}" if opening == "{" else "]"
        self.arguments(self.take(1))
        between = ""
        while True:
            yield from self.white()
            if (yield from self.literal(closing)):
                self.arguments(closing)
                return True
            if (yield from self.literal("}", "]")):
                return True  # the wrong bracket: the text is malformed, parse on
            if between:
                yield from self.literal(",")
                yield from self.white()
            if not (yield from self.next_character()):
                return False
            self.arguments(between)
            between = ", "
            if opening == "{" and not (yield from self._key()):
                return False
            if not (yield from self._value(depth + 1)):
                return False

    def _key(self) -> Steps[bool]:
        if (yield from self.literal(self._quote)):
            if not (yield from self._string()):
                return False
            yield from self.white()
            yield from self.literal(":")
        else:
            key, end = yield from self.collect_until((":",))
            if not end:
                self.cut_off_name(key)
                return False
            self.arguments(json.dumps(key.strip(), ensure_ascii=False))
        self.arguments(": ")
        return True

    def _string(self) -> Steps[bool]:
        self.arguments('"')
        if not (yield from self.until((self._quote,), self._emit_inside)):
            return False
        self.arguments('"')
        return True

    def _emit_inside(self, text: str) -> None:
        self.arguments(json.dumps(text, ensure_ascii=False)[1:-1])

    def _bare(self) -> Steps[bool]:
        """Parse a number, true, false, null, or a string without its marks."""
        text, end = yield from self.collect_until((",", "}", "]"))
        self.put_back(end)
        try:
            json_value(text)
            self.arguments(text.strip())
        except ValueError:
            self.arguments(json.dumps(text.strip(), ensure_ascii=False))
        return bool(end)


def _language(quote: str) -> LiteralLanguage:
    def written(text: str) -> str:
        if quote in text:
            raise SchemaError(f"holds the text {shortened(text)!r}, which cannot be written in this format")
        return f"{quote}{text}{quote}"

    return LiteralLanguage(
        string=lambda lark, texts: f"{lark.text(quote)} {lark.ended(f'{texts} & {without(quote)}', quote)}",
        written=written,
        key=lambda name: name if is_plain_name(name) else written(name),
        words={"true": "true", "false": "false", "null": "null"},
        comma=",",
        colon=":",
    )


def _format(begin: str, end: str, quote: str) -> ToolFormat:
    language = _language(quote)

    def arguments(lark: Lark, schema: ToolSchema) -> str:
        return LiteralGrammar(language, lark, schema).value(schema.arguments())

    return ToolFormat(
        lambda tools: GemmaParser(begin, end, quote),
        marks=(begin, end, quote),
        grammars=forced_by(CallSyntax(f"{begin}call:{NAME}", end, arguments=arguments, triggers=(begin,))),
        in_template=(begin,),
        in_calls=(begin,),
    )


GEMMA4 = _format("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = _format("<start_function_call>", "<end_function_call>", "<escape>")
