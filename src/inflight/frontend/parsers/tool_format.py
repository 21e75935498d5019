"""A format of tool calls: who parses it, which marks it is made of, and how a forced call is written in it.

Knows formats as values; `registry` knows which there are, `forced_calls` makes grammars of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from inflight.frontend.parsers.answer_parser import AnswerParser
from inflight.frontend.parsers.parser_choice import Tool


class CallSyntax(Struct, frozen=True):
    """A forced call whose arguments are JSON: `begin`, in which NAME stands for the tool's name, the arguments, `end`.
    opens, closes: around all calls of an answer. separator: between two."""

    begin: str
    end: str = ""
    opens: str = ""
    closes: str = ""
    separator: str = ""


NAME = "{name}"  # replaced, never formatted: a name may hold braces


class ToolFormat(Struct, frozen=True):
    """parser: of one answer. marks: texts that may be special tokens and must be seen. syntax: None: calls in it cannot
    be forced. in_template: a chat template that has all of these writes the format; empty: none is recognised.
    reasons: its parser tells reasoning by itself."""

    parser: Callable[[Sequence[Tool]], AnswerParser]
    marks: tuple[str, ...] = ()
    syntax: CallSyntax | None = None
    in_template: tuple[str, ...] = ()
    reasons: bool = False
