"""Deltas of answers, as serializers of blocks and items take them."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.frontend.answers import ParsedAnswer
from inflight.frontend.parsers.answer_parser import AnswerDelta, ContentDelta, ReasoningDelta, ToolCallDelta


def deltas_of(answer: ParsedAnswer) -> list[AnswerDelta]:
    """A whole answer as few deltas."""
    deltas: list[AnswerDelta] = []
    if answer.reasoning:
        deltas.append(ReasoningDelta(answer.reasoning))
    if answer.content:
        deltas.append(ContentDelta(answer.content))
    calls = enumerate(answer.calls)
    return deltas + [ToolCallDelta(index, one.name, one.arguments, one.call_id) for index, one in calls]


def joined(deltas: Sequence[AnswerDelta]) -> list[AnswerDelta]:
    """Neighbours of one kind as one."""
    joined: list[AnswerDelta] = []
    for delta in deltas:
        last = joined[-1] if joined else None
        if isinstance(delta, ContentDelta) and isinstance(last, ContentDelta):
            joined[-1] = ContentDelta(last.text + delta.text)
        elif isinstance(delta, ReasoningDelta) and isinstance(last, ReasoningDelta):
            joined[-1] = ReasoningDelta(last.text + delta.text)
        elif isinstance(delta, ToolCallDelta) and isinstance(last, ToolCallDelta) and delta.index == last.index:
            arguments = last.arguments + delta.arguments
            joined[-1] = ToolCallDelta(last.index, last.name, arguments, last.call_id)
        else:
            joined.append(delta)
    return joined
