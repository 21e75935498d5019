"""Answers as clients read them: content, reasoning and calls of tools, told apart as the text comes.

Knows one answer at a time, and the parser that the call has for it. A parser that fails, or tells what cannot be, is
not asked again: the rest of the answer is content.
"""

from __future__ import annotations

import logging
import secrets
import string
from collections.abc import Sequence

from msgspec import Struct

from inflight.frontend.parsers.answer_parser import (
    AnswerDelta,
    AnswerParser,
    ContentDelta,
    ReasoningDelta,
    ToolCallDelta,
)
from inflight.frontend.parsers.content import ContentParser
from inflight.frontend.parsers.parser_choice import ParserChoice, Tool
from inflight.frontend.segments import Segment, TextSegment, ToolCall

log = logging.getLogger(__name__)
_LETTERS = string.ascii_letters + string.digits


class AnswerParsing(Struct, frozen=True):
    """How the answers of one call are parsed. choice: None where nothing of the model's answers is known: all is
    content. parallel: an answer's calls of tools are told; else the first alone."""

    choice: ParserChoice | None = None
    tools: tuple[Tool, ...] = ()
    in_reasoning: bool = False
    parallel: bool = True

    def new(self) -> ParsedAnswer:
        if self.choice is None:
            return ParsedAnswer(ContentParser())
        parser = self.choice.parser(self.tools, self.in_reasoning)
        return ParsedAnswer(parser, self.parallel, 9 if self.choice.short_call_ids else 24)


class ParsedAnswer:
    """One answer so far. segments: in the order in which they were written; calls: those of tools among them.
    reasoning_tokens: tokens of the reasoning, its marks included. held_tokens: that may be the content's, once their
    text is told."""

    def __init__(self, parser: AnswerParser, parallel: bool = True, id_length: int = 24):
        self.segments: list[Segment] = []
        self.calls: list[ToolCall] = []
        self.reasoning_tokens = 0
        self.held_tokens = 0
        self._parser = parser
        self._most_calls = None if parallel else 1
        self._num_calls = 0  # that the parser has told, those included that are left out
        self._in_call = False  # what it told last is of one
        self._id_length = id_length

    @property
    def content(self) -> str:
        """All of it, as forms of answers have it that know no order."""
        return self._text(is_reasoning=False)

    @property
    def reasoning(self) -> str:
        return self._text(is_reasoning=True)

    def push(self, text: str) -> list[AnswerDelta]:
        """The text of one token. What it adds."""
        was_reasoning = self._parser.in_reasoning
        try:
            deltas = self._checked(self._parser.push(text))
        except Exception as fault:
            deltas = self._give_up(fault, text)
        reasons = self._parser.in_reasoning
        self.reasoning_tokens += reasons
        if not deltas and (was_reasoning or reasons or self.calls):
            self.held_tokens = 0  # of a mark
            return []
        self.held_tokens += 1
        told = self._told(deltas)
        self.held_tokens = 0 if deltas else self.held_tokens
        return told

    def finish(self, rest: str) -> list[AnswerDelta]:
        """rest: of the text, at the answer's end. With what was held back."""
        try:
            deltas = self._checked([*(self._parser.push(rest) if rest else ()), *self._parser.finish()])
        except Exception as fault:
            deltas = self._give_up(fault, rest)
        return self._told(deltas)

    def _text(self, is_reasoning: bool) -> str:
        segments = (one for one in self.segments if isinstance(one, TextSegment) and one.is_reasoning == is_reasoning)
        return "".join([piece for one in segments for piece in one.pieces])

    def _checked(self, deltas: Sequence[AnswerDelta]) -> Sequence[AnswerDelta]:
        """A parser may be somebody else's. Raises ValueError for what is no delta, and for calls that are not told one
        after another."""
        deltas, told, is_open = list(deltas), self._num_calls, self._in_call
        for delta in deltas:
            if not isinstance(delta, AnswerDelta):
                raise ValueError(f"it tells a {type(delta).__name__}")
            begins = isinstance(delta, ToolCallDelta) and delta.index == told
            if isinstance(delta, ToolCallDelta) and not begins and not (is_open and delta.index == told - 1):
                raise ValueError(f"a piece of call {delta.index} comes where call {told} would begin")
            is_open = isinstance(delta, ToolCallDelta)
            told += begins
        self._num_calls, self._in_call = told, is_open
        return deltas

    def _give_up(self, fault: Exception, text: str) -> Sequence[AnswerDelta]:
        log.warning(
            "A parser of answers failed (%s: %s); the rest of the answer is content.", type(fault).__name__, fault
        )
        self._parser = ContentParser()
        return self._parser.push(text)

    def _told(self, deltas: Sequence[AnswerDelta]) -> list[AnswerDelta]:
        told = [self._take(delta) for delta in deltas]
        return [one for one in told if one is not None]

    def _take(self, delta: AnswerDelta) -> AnswerDelta | None:
        if isinstance(delta, ToolCallDelta):
            return self._take_call(delta)
        if not delta.text:
            return None
        tokens = 0
        if isinstance(delta, ContentDelta):
            tokens, self.held_tokens = self.held_tokens, 0
            delta = ContentDelta(delta.text, tokens)
        last = self.segments[-1] if self.segments else None
        if not isinstance(last, TextSegment) or last.is_reasoning != isinstance(delta, ReasoningDelta):
            last = TextSegment(isinstance(delta, ReasoningDelta))
            self.segments.append(last)
        last.pieces.append(delta.text)
        last.tokens += tokens
        return delta

    def _take_call(self, delta: ToolCallDelta) -> ToolCallDelta | None:
        if self._most_calls is not None and delta.index >= self._most_calls:
            return None
        begins = delta.index == len(self.calls)
        if begins:
            self.calls.append(ToolCall(delta.call_id or new_call_id(self._id_length), delta.name or ""))
            self.segments.append(self.calls[-1])
        call = self.calls[-1]
        call.pieces.append(delta.arguments)
        return ToolCallDelta(delta.index, call.name if begins else None, delta.arguments, call.call_id)


def new_call_id(length: int = 24) -> str:
    """Of a call whose model writes no ids: as OpenAI's, or the nine letters and digits that some templates take."""
    letters = "".join(secrets.choice(_LETTERS) for _ in range(length))
    return letters if length == 9 else f"call_{letters}"
