"""Split one answer into content, reasoning and tool calls, piece by piece.

If the parser fails or returns invalid deltas, the rest of the answer is content.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import string
from collections.abc import Sequence

from msgspec import Struct

from inflight.frontend.parsers.answer_parser import (
    AnswerDelta,
    AnswerParser,
    ContentDelta,
    ContentParser,
    ReasoningDelta,
    ToolCallDelta,
)
from inflight.frontend.parsers.parser_choice import ParserChoice, Tool

log = logging.getLogger(__name__)
_LETTERS = string.ascii_letters + string.digits


class TextSegment(Struct):
    """Consecutive text of one kind. tokens: number of the content's tokens; 0 for reasoning."""

    is_reasoning: bool
    pieces: list[str] = []
    tokens: int = 0

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class ToolCall(Struct):
    """A tool call so far; its arguments are JSON text."""

    call_id: str
    name: str
    pieces: list[str] = []

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


Segment = TextSegment | ToolCall


class AnswerParsing(Struct, frozen=True):
    """Settings for parsing the answers of one call.

    Attributes:
        choice: The model's parsers; None: all text is content.
        tools: That the model may call.
        in_reasoning: Whether the prompt ends within reasoning.
        parallel: Whether an answer may have several tool calls; if not, only the first is returned.
    """

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
    """One answer so far.

    Attributes:
        segments: In the order in which the model wrote them.
        calls: The tool calls among the segments.
        reasoning_tokens: Tokens of the reasoning, including its marks.
        pending_tokens: Last tokens, which belong to the content if their text turns out to be content.
    """

    def __init__(self, parser: AnswerParser, parallel: bool = True, id_length: int = 24):
        self.segments: list[Segment] = []
        self.calls: list[ToolCall] = []
        self.reasoning_tokens = 0
        self.pending_tokens = 0
        self._parser = parser
        self._max_calls = None if parallel else 1
        self._num_calls = 0  # parsed, including calls that are not returned
        self._in_call = False  # whether the last delta was of a call
        self._id_length = id_length

    @property
    def content(self) -> str:
        """All content, for APIs whose answers have no order of content and calls."""
        return self._text(is_reasoning=False)

    @property
    def reasoning(self) -> str:
        return self._text(is_reasoning=True)

    def deltas(self) -> list[AnswerDelta]:
        """Return the answer so far as deltas, one for each segment."""
        deltas, calls = list[AnswerDelta](), itertools.count()
        for one in self.segments:
            if isinstance(one, ToolCall):
                deltas.append(ToolCallDelta(next(calls), one.name, one.arguments, one.call_id))
            else:
                deltas.append(ReasoningDelta(one.text) if one.is_reasoning else ContentDelta(one.text, one.tokens))
        return deltas

    def push(self, text: str) -> list[AnswerDelta]:
        """Parse the text of one token; return the new deltas."""
        was_reasoning = self._parser.in_reasoning
        try:
            deltas = self._checked(self._parser.push(text))
        except Exception as fault:
            deltas = self._fall_back(fault, text)
        reasons = self._parser.in_reasoning
        self.reasoning_tokens += reasons
        if not deltas and (was_reasoning or reasons or self.calls):
            self.pending_tokens = 0  # of a mark
            return []
        self.pending_tokens += 1
        taken = self._take_all(deltas)
        self.pending_tokens = 0 if deltas else self.pending_tokens
        return taken

    def finish(self, rest: str) -> list[AnswerDelta]:
        """Parse the rest of the text at the answer's end; return the last deltas, including withheld text."""
        try:
            deltas = self._checked([*(self._parser.push(rest) if rest else ()), *self._parser.finish()])
        except Exception as fault:
            deltas = self._fall_back(fault, rest)
        return self._take_all(deltas)

    def _text(self, is_reasoning: bool) -> str:
        segments = (one for one in self.segments if isinstance(one, TextSegment) and one.is_reasoning == is_reasoning)
        return "".join([piece for one in segments for piece in one.pieces])

    def _checked(self, deltas: Sequence[AnswerDelta]) -> Sequence[AnswerDelta]:
        """Check the deltas of a parser, which may be a plugin's.

        Raises:
            ValueError: An item is no delta, or calls are not one after another.
        """
        deltas, num_calls, is_open = list(deltas), self._num_calls, self._in_call
        for delta in deltas:
            if not isinstance(delta, AnswerDelta):
                raise ValueError(f"it returned a {type(delta).__name__}")
            begins = isinstance(delta, ToolCallDelta) and delta.index == num_calls
            if isinstance(delta, ToolCallDelta) and not begins and not (is_open and delta.index == num_calls - 1):
                raise ValueError(f"a piece of call {delta.index} comes where call {num_calls} would begin")
            is_open = isinstance(delta, ToolCallDelta)
            num_calls += begins
        self._num_calls, self._in_call = num_calls, is_open
        return deltas

    def _fall_back(self, fault: Exception, text: str) -> Sequence[AnswerDelta]:
        log.warning(
            "A parser of answers failed (%s: %s); the rest of the answer is content.", type(fault).__name__, fault
        )
        self._parser = ContentParser()
        return self._parser.push(text)

    def _take_all(self, deltas: Sequence[AnswerDelta]) -> list[AnswerDelta]:
        taken = [self._take(delta) for delta in deltas]
        return [one for one in taken if one is not None]

    def _take(self, delta: AnswerDelta) -> AnswerDelta | None:
        if isinstance(delta, ToolCallDelta):
            return self._take_call(delta)
        if not delta.text:
            return None
        tokens = 0
        if isinstance(delta, ContentDelta):
            tokens, self.pending_tokens = self.pending_tokens, 0
            delta = ContentDelta(delta.text, tokens)
        last = self.segments[-1] if self.segments else None
        if not isinstance(last, TextSegment) or last.is_reasoning != isinstance(delta, ReasoningDelta):
            last = TextSegment(isinstance(delta, ReasoningDelta))
            self.segments.append(last)
        last.pieces.append(delta.text)
        last.tokens += tokens
        return delta

    def _take_call(self, delta: ToolCallDelta) -> ToolCallDelta | None:
        if self._max_calls is not None and delta.index >= self._max_calls:
            return None
        begins = delta.index == len(self.calls)
        if begins:
            self.calls.append(ToolCall(delta.call_id or new_call_id(self._id_length), delta.name or ""))
            self.segments.append(self.calls[-1])
        call = self.calls[-1]
        call.pieces.append(delta.arguments)
        return ToolCallDelta(delta.index, call.name if begins else None, delta.arguments, call.call_id)


def new_call_id(length: int = 24) -> str:
    """Make the id of a call: as OpenAI's, or nine letters and digits, which some templates require."""
    letters = "".join(secrets.choice(_LETTERS) for _ in range(length))
    return letters if length == 9 else f"call_{letters}"
