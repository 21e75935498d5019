"""Deltas of answers, as serializers of blocks and items take them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from inflight.frontend.answers import ParsedAnswer
from inflight.frontend.parsers.answer_parser import AnswerDelta, ContentDelta, ReasoningDelta, ToolCallDelta
from inflight.frontend.segments import Segment, ToolCall


def deltas_of(answer: ParsedAnswer) -> list[AnswerDelta]:
    """A whole answer as few deltas: one for each segment."""
    calls = itertools.count()
    return [_delta_of(one, calls) for one in answer.segments]


def _delta_of(segment: Segment, calls: Iterator[int]) -> AnswerDelta:
    if isinstance(segment, ToolCall):
        return ToolCallDelta(next(calls), segment.name, segment.arguments, segment.call_id)
    return ReasoningDelta(segment.text) if segment.is_reasoning else ContentDelta(segment.text, segment.tokens)


def joined(deltas: Sequence[AnswerDelta]) -> list[AnswerDelta]:
    """Neighbours of one kind as one."""
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
