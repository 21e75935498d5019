"""Input of serializers: usage, changes and choices, made of the engine's events."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from inflight.core.types.events import Finish
from inflight.core.types.sampling import TokenLogprob
from inflight.frontend.answers import ParsedAnswer
from inflight.frontend.outputs import CompletionOutput, OutputCollector
from inflight.frontend.parsers.answer_parser import AnswerDelta, ContentDelta, ReasoningDelta, ToolCallDelta
from inflight.frontend.segments import Segment, ToolCall
from inflight.server.call import Call
from inflight.server.common.logprobs import TokenNames
from inflight.server.errors import ApiError


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of a call so far. cached_tokens: of prompts that have a token. output_tokens: of everything that was
    drawn, shown or not; reasoning_tokens are among them."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(slots=True)
class Change:
    """The news of one choice since its last frame.

    collector: of its prompt. begins: it has no frame yet. text: as it was drawn; deltas: the same as content, reasoning
    and calls, where the call's answers are parsed. logprobs: of the tokens, of parsed answers those of the content.
    """

    index: int
    collector: OutputCollector
    begins: bool = False
    text: str = ""
    deltas: list[AnswerDelta] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of a whole answer. answer: its content, reasoning and calls, where the call's answers are parsed."""

    index: int
    collector: OutputCollector
    output: CompletionOutput
    answer: ParsedAnswer | None


class AnswerSerializer(Protocol):
    """Writes the answer to one call: JSON for whole answers, server-sent events for streams."""

    def __init__(self, call: Call, collectors: Sequence[OutputCollector], names: TokenNames): ...

    @property
    def alive(self) -> bytes:
        """Return a sign of life for a stream without news."""

    def whole(self, choices: Sequence[Choice], usage: TokenUsage) -> bytes:
        """Return the answer, once all choices have finished."""

    def frames(self, changes: Sequence[Change], before: TokenUsage, after: TokenUsage, ended: bool) -> bytes:
        """Return what these changes add. before, after: usage without and with them. ended: all has finished."""

    def end(self, usage: TokenUsage) -> bytes:
        """Return the last frames, when all has finished."""

    def failed(self, error: ApiError) -> bytes:
        """Return the last frames of a stream that ends in an error."""


@runtime_checkable
class KeepableSerializer(AnswerSerializer, Protocol):
    """A serializer of answers that can be stored."""

    def kept(self, usage: TokenUsage) -> bytes:
        """Return what is stored of a finished stream: the whole answer. Called before `end`, which has the same."""


def deltas_of(answer: ParsedAnswer) -> list[AnswerDelta]:
    """Return a whole answer as deltas, one for each segment."""
    calls = itertools.count()
    return [_delta_of(one, calls) for one in answer.segments]


def _delta_of(segment: Segment, calls: Iterator[int]) -> AnswerDelta:
    if isinstance(segment, ToolCall):
        return ToolCallDelta(next(calls), segment.name, segment.arguments, segment.call_id)
    return ReasoningDelta(segment.text) if segment.is_reasoning else ContentDelta(segment.text, segment.tokens)


def joined(deltas: Sequence[AnswerDelta]) -> list[AnswerDelta]:
    """Return deltas of which neighbours of one kind are joined."""
    joined: list[AnswerDelta] = []
    for delta in deltas:
        last = joined[-1] if joined else None
        if isinstance(delta, ContentDelta) and isinstance(last, ContentDelta):
            joined[-1] = ContentDelta(last.text + delta.text, last.tokens + delta.tokens)
        elif isinstance(delta, ReasoningDelta) and isinstance(last, ReasoningDelta):
            joined[-1] = ReasoningDelta(last.text + delta.text)
        elif isinstance(delta, ToolCallDelta) and isinstance(last, ToolCallDelta) and delta.index == last.index:
            arguments = last.arguments + delta.arguments
            joined[-1] = ToolCallDelta(last.index, last.name, arguments, last.call_id)
        else:
            joined.append(delta)
    return joined
