"""Parse `[name(key=value, …), …]` with Python literals, with or without `<|python_start|>`: Llama 4.

Each argument is emitted once it is complete: a Python literal can only be converted as a whole.
"""

from __future__ import annotations

import ast
import json
import re

from inflight.counted import shortened
from inflight.frontend.parsers.forced_calls import NAME, CallSyntax, forced_by
from inflight.frontend.parsers.json_values import json_value
from inflight.frontend.parsers.lark import ANY_TEXT, Lark, regex
from inflight.frontend.parsers.literal_grammar import LiteralGrammar, LiteralLanguage, is_plain_name
from inflight.frontend.parsers.pull_parser import PullParser, Steps
from inflight.frontend.parsers.tool_format import ToolFormat
from inflight.frontend.parsers.tool_schema import SchemaError, ToolSchema

_BEGIN, _END = "<|python_start|>", "<|python_end|>"
_A_NAME = re.compile(r"[A-Za-z_][\w.-]*")


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
        """Parse a call. Return False if it is none; its text is still recorded."""
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
            if end != "=":  # an argument without a name: emitted as it is written
                self.arguments(f"{between}{key}" + ("}" if end else ""))
                return True
            self.arguments(f"{between}{json.dumps(key.strip(), ensure_ascii=False)}: ")
            between = ", "
            value, is_whole = yield from self._value()
            self.arguments(_as_json(value) if is_whole else value)
            if not is_whole:
                return True
            yield from self.literal(",")

    def _value(self) -> Steps[tuple[str, bool]]:
        """Return one literal as it is written, and False if the answer ends within it."""
        pieces, quote, depth, escaped = list[str](), "", 0, False
        while character := (yield from self.next_character()):
            if not quote and depth == 0 and character in ",)":
                return "".join(pieces), True
            pieces.append(self.take(1))
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
        return "".join(pieces), False


def _as_json(text: str) -> str:
    text = text.strip()
    try:
        json_value(text)
        return text  # some models write JSON here
    except ValueError:
        pass
    try:
        return json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return json.dumps(text, ensure_ascii=False)


# Only characters without escapes, so that a schema's pattern holds of the text as it is written.
_PLAIN = regex(r"[^'\\\r\n\x00]*")
_SPELLED = regex(r"""([^'\\\r\n\x00]|\\[\\'"nrt])*""")


def _string(lark: Lark, texts: str) -> str:
    inside = _SPELLED if texts == ANY_TEXT else f"({texts}) & {_PLAIN}"
    return lark.terminal(f'"\'" ({inside}) "\'"')


PYTHON = LiteralLanguage(
    string=_string,
    written=repr,
    key=repr,
    words={"true": "True", "false": "False", "null": "None"},
    comma=", ",
    colon=": ",
)


def _arguments(lark: Lark, schema: ToolSchema) -> str:
    arguments = schema.arguments()
    if (others := schema.others(arguments)) is not None:
        name = lark.terminal(regex(r"[A-Za-z_]\w{0,63}"))
        one = f'{name} "=" {LiteralGrammar(PYTHON, lark, schema).value(others)}'
        return f'({one} (", " {one})*)?'
    return LiteralGrammar(PYTHON, lark, schema).members(arguments, _keyword, ", ")


def _keyword(name: str) -> str:
    if not is_plain_name(name):
        raise SchemaError(f"has a property {shortened(name)!r}, whose name cannot be written in this format")
    return f"{name}="


LLAMA4_PYTHONIC = ToolFormat(
    lambda tools: PythonicParser(),
    marks=(_BEGIN, _END),
    grammars=forced_by(
        CallSyntax(
            f"{NAME}(",
            ")",
            opens="[",
            closes="]",
            separator=", ",
            arguments=_arguments,
            triggers=(_BEGIN,),
            at_begin=r"\s*\[",
            may_follow=_END,
            names=_A_NAME.pattern,
        )
    ),
    in_template=(_BEGIN,),
)
