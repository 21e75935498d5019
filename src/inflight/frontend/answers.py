"""Answers as clients read them: content, reasoning and calls of tools, told apart as the text comes.

Knows one answer at a time, and the parser that the call has for it. A parser that fails is not asked again: the rest of
the answer is content.
"""

from __future__ import annotations

import logging
import secrets
import string

from msgspec import Struct

from inflight.frontend.parsers.answer_parser import (
    AnswerDelta,
    AnswerParser,
    ContentDelta,
    ReasoningDelta,
    ToolCallDelta,
)
from inflight.frontend.parsers.parser_choice import ParserChoice, Tool

log = logging.getLogger(__name__)
_LETTERS = string.ascii_letters + string.digits


class ToolCall(Struct):
    """arguments: JSON text, as far as it has come."""

    call_id: str
    name: str
    arguments: str = ""


class AnswerParsing(Struct, frozen=True):
    """How the answers of one call are parsed. choice: None where nothing of the model's answers is known: all is
    content. parallel: an answer's calls of tools are told; else the first alone."""

    choice: ParserChoice | None = None
    tools: tuple[Tool, ...] = ()
    in_reasoning: bool = False
    parallel: bool = True

    def new(self) -> ParsedAnswer:
        if self.choice is None:
            return ParsedAnswer(_Plain())
        parser = self.choice.parser(self.tools, self.in_reasoning)
        return ParsedAnswer(parser, self.parallel, 9 if self.choice.short_call_ids else 24)


class ParsedAnswer:
    """One answer so far. content, reasoning: their texts; calls: of tools. reasoning_tokens: tokens of the reasoning,
    its marks included."""

    def __init__(self, parser: AnswerParser, parallel: bool = True, id_length: int = 24):
        self.calls: list[ToolCall] = []
        self.reasoning_tokens = 0
        self._parser = parser
        self._most_calls = None if parallel else 1
        self._id_length = id_length
        self._content: list[str] = []
        self._reasoning: list[str] = []

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def push(self, text: str) -> tuple[list[AnswerDelta], bool]:
        """The text of one token. What it adds, and whether the token is one of the content."""
        was_reasoning = self._parser.in_reasoning
        try:
            deltas = self._parser.push(text)
        except Exception as fault:
            deltas = self._give_up(fault, text)
        reasons = self._parser.in_reasoning
        self.reasoning_tokens += reasons
        if not deltas:
            return [], not (was_reasoning or reasons or self.calls)
        return self._told(deltas), any(isinstance(one, ContentDelta) for one in deltas)

    def finish(self, rest: str) -> list[AnswerDelta]:
        """rest: of the text, at the answer's end. With what was held back."""
        try:
            deltas = [*(self._parser.push(rest) if rest else ()), *self._parser.finish()]
        except Exception as fault:
            deltas = self._give_up(fault, rest)
        return self._told(deltas)

    def _give_up(self, fault: Exception, text: str) -> list[AnswerDelta]:
        log.warning(
            "A parser of answers failed (%s: %s); the rest of the answer is content.", type(fault).__name__, fault
        )
        self._parser = _Plain()
        return [ContentDelta(text)] if text else []

    def _told(self, deltas: list[AnswerDelta]) -> list[AnswerDelta]:
        told = [self._take(delta) for delta in deltas]
        return [one for one in told if one is not None]

    def _take(self, delta: AnswerDelta) -> AnswerDelta | None:
        if isinstance(delta, ContentDelta):
            self._content.append(delta.text)
        elif isinstance(delta, ReasoningDelta):
            self._reasoning.append(delta.text)
        elif self._most_calls is not None and delta.index >= self._most_calls:
            return None
        elif delta.index == len(self.calls):
            call = ToolCall(delta.call_id or new_call_id(self._id_length), delta.name or "", delta.arguments)
            self.calls.append(call)
            return ToolCallDelta(delta.index, call.name, delta.arguments, call.call_id)
        else:
            self.calls[delta.index].arguments += delta.arguments
            return ToolCallDelta(delta.index, None, delta.arguments, self.calls[delta.index].call_id)
        return delta


class _Plain:
    """All text is content."""

    in_reasoning = False

    def push(self, text: str) -> list[AnswerDelta]:
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[AnswerDelta]:
        return []


def new_call_id(length: int = 24) -> str:
    """Of a call whose model writes no ids: as OpenAI's, or the nine letters and digits that some templates take."""
    letters = "".join(secrets.choice(_LETTERS) for _ in range(length))
    return letters if length == 9 else f"call_{letters}"
