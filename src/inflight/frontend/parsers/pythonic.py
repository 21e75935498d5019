"""`[name(key=value, …), …]` with values as Python writes them, with or without `<|python_start|>`: Llama 4.

Arguments are told one by one, each when it is whole: what a Python literal means is known at its end only.
"""

from __future__ import annotations

import ast
import json
import re

from inflight.frontend.parsers.pull_parser import PullParser, Steps
from inflight.frontend.parsers.tool_format import ToolFormat

_BEGIN, _END = "<|python_start|>", "<|python_end|>"
_A_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_NAMES_OF_JSON = ("true", "false", "null")


class PythonicParser(PullParser):
    def walk(self) -> Steps[None]:
        space = yield from self.white()
        if (yield from self.next_character()) == "[":
            yield from self._list(space)
        else:
            self.content(space)
        while mark := (yield from self.until((_BEGIN,), self.content)):
            yield from self._list(mark)

    def _list(self, mark: str) -> Steps[None]:
        self.record()
        yield from self.white()
        if not (yield from self.literal("[")):
            self.no_call(mark)
            return
        while (yield from self._call()):
            mark = ""
            self.record()
            yield from self.white()
            if (yield from self.literal("]")):
                self.recorded()
                yield from self.white()
                yield from self.literal(_END)
                return
            yield from self.literal(",")
        self.no_call(mark)

    def _call(self) -> Steps[bool]:
        """False: it is none, and what was consumed is still recorded."""
        yield from self.white()
        name, end = yield from self.collect_until(("(", "]", "\n", ",", '"', "'", "{"))
        if end != "(" or not _A_NAME.fullmatch(name):
            return False
        self.recorded()
        self.begin_call(name, "{")
        between = ""
        while True:
            yield from self.white()
            if (yield from self.literal(")")):
                self.arguments("}")
                return True
            key, end = yield from self.collect_until(("=", ")"))
            if end != "=":
                self.arguments("}" if end else "")
                return True
            value = yield from self._value()
            if value is None:
                return True
            self.arguments(f"{between}{json.dumps(key.strip())}: {_as_json(value)}")
            between = ", "
            yield from self.literal(",")

    def _value(self) -> Steps[str | None]:
        """One literal as it is written; None where the answer ends within it."""
        text, quote, depth, escaped = "", "", 0, False
        while character := (yield from self.next_character()):
            if not quote and depth == 0 and character in ",)":
                return text
            text += self.take(1)
            if escaped:
                escaped = False
            elif quote:
                escaped = character == "\\"
                quote = "" if character == quote else quote
            elif character in "\"'":
                quote = character
            elif character in "([{":
                depth += 1
            elif character in ")]}":
                depth -= 1
        return None


def _as_json(text: str) -> str:
    text = text.strip()
    if text in _NAMES_OF_JSON:
        return text
    try:
        return json.dumps(ast.literal_eval(text), ensure_ascii=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return json.dumps(text, ensure_ascii=False)


LLAMA4_PYTHONIC = ToolFormat(lambda tools: PythonicParser(), (_BEGIN, _END), in_template=(_BEGIN,))
