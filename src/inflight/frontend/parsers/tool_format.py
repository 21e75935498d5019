"""A format of tool calls: who parses it, which marks it is made of, and how a forced call is written in it.

Knows formats as values; `registry` knows which there are, `forced_calls` makes grammars of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from inflight.core.types.sampling import Grammar
from inflight.frontend.parsers.answer_parser import AnswerParser
from inflight.frontend.parsers.parser_choice import Tool, ToolChoice


class AnswerGrammars(Protocol):
    """Of the answers in one format. Each raises ValueError with a sentence for what it cannot force."""

    def required(self, tools: Sequence[Tool], choice: ToolChoice) -> Grammar:
        """Calls, and nothing else."""

    def or_content(self, tools: Sequence[Tool], choice: ToolChoice, content: str) -> Grammar:
        """Calls, or JSON of the schema `content`."""

    def free(self, tools: Sequence[Tool], choice: ToolChoice) -> Grammar:
        """Any text; but where it begins calls, these are whole ones."""


class ToolFormat(Struct, frozen=True):
    """parser: of one answer. marks: texts that may be special tokens and must be seen. grammars: that force calls, of
    the ids of those marks that are tokens; None: calls in it cannot be forced. in_template: a chat template
    that has all of these writes the format; empty: none is recognised. reasons: parser and grammars know reasoning by
    themselves. in_calls: texts of which every answer with a call has one, and hardly any other; empty: there are no
    such texts."""

    parser: Callable[[Sequence[Tool]], AnswerParser]
    marks: tuple[str, ...] = ()
    grammars: Callable[[Mapping[str, int]], AnswerGrammars] | None = None
    in_template: tuple[str, ...] = ()
    reasons: bool = False
    in_calls: tuple[str, ...] = ()
