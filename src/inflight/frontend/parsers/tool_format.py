"""Define a format of tool calls: its parser, its marks and its grammars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from inflight.core.types.sampling import Grammar
from inflight.frontend.parsers.answer_parser import AnswerParser
from inflight.frontend.parsers.parser_choice import Tool, ToolChoice


class AnswerGrammars(Protocol):
    """The grammars of one format. Each method raises ValueError if the format cannot be forced."""

    def required(self, tools: Sequence[Tool], choice: ToolChoice) -> Grammar:
        """Return a grammar of calls only."""

    def or_content(self, tools: Sequence[Tool], choice: ToolChoice, content: str) -> Grammar:
        """Return a grammar of calls, or of JSON of the schema `content`."""

    def free(self, tools: Sequence[Tool], choice: ToolChoice) -> Grammar:
        """Return a grammar of any text in which calls, once begun, are complete."""


class ToolFormat(Struct, frozen=True):
    """A format of tool calls.

    Attributes:
        parser: Makes the parser of one answer.
        marks: Texts that may be special tokens and must be visible.
        grammars: Makes grammars from the ids of marks that are tokens; None: calls cannot be forced.
        in_template: Texts that are all in a chat template of this format; empty: templates are not recognized.
        reasons: Whether parser and grammars include reasoning.
        always_constrained: Whether a grammar constrains every answer that may call tools.
        in_calls: Texts one of which is in every answer with a call, and in hardly any other; empty: there are none.
    """

    parser: Callable[[Sequence[Tool]], AnswerParser]
    marks: tuple[str, ...] = ()
    grammars: Callable[[Mapping[str, int]], AnswerGrammars] | None = None
    in_template: tuple[str, ...] = ()
    reasons: bool = False
    in_calls: tuple[str, ...] = ()
    always_constrained: bool = False
