"""Convert steps, from a plan with its result or from a record's line, to the form that frames are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from inflight.core.types.plan import BatchPlan, Chunk, StepResult
from inflight.live.frames import BlocksPart, Holder, LanePart
from inflight.records.drafts import rejected, verified
from inflight.records.schema import StepRecord

NOTHING: Mapping[int, int] = {}
_num_drafts = attrgetter("num_drafts")


class StepFacts(NamedTuple):
    """One step.

    Attributes:
        predicted: Seconds; 0: before the latency model was ready.
        new_requests: Row → prompt tokens.
        padding: Lengths of padded runs.
        rejected: Sequence → rejected draft tokens, the last tokens of its chunk.
        verified: Draft tokens and accepted draft tokens of each chunk with drafts.
    """

    planned: float
    committed: float
    seconds: float
    predicted: float
    chunks: Sequence[Chunk]
    new_requests: Mapping[int, int]
    freed_rows: Sequence[int]
    padding: Sequence[int]
    rejected: Mapping[int, int]
    verified: Sequence[tuple[int, int]] = ()


class Moment(NamedTuple):
    """The state at a frame's end. holders: the running sequences."""

    lanes: Sequence[LanePart]
    blocks: BlocksPart
    holders: Sequence[Holder]


def of_plan(plan: BatchPlan, result: StepResult, planned: float, committed: float, predicted: float) -> StepFacts:
    checked: tuple[tuple[int, int], ...] = ()
    wrong: Mapping[int, int] = NOTHING
    if any(map(_num_drafts, plan.chunks)):
        drafts = {chunk.sequence_id: chunk.num_drafts for chunk in plan.chunks if chunk.num_drafts}
        drawn = [one for one in result.sampled if one.sequence_id in drafts and not one.waits_for]
        right = {one.sequence_id: max(0, len(one.token_ids) - 1) for one in drawn}
        wrong = {number: count - right.get(number, 0) for number, count in drafts.items()}
        checked = tuple((drafts[number], accepted) for number, accepted in right.items())
    return StepFacts(
        planned,
        committed,
        result.seconds,
        predicted,
        plan.chunks,
        {new.row: new.prompt_length for new in plan.new_requests} if plan.new_requests else NOTHING,
        plan.freed_rows,
        plan.padding,
        wrong,
        checked,
    )


def of_record(step: StepRecord, predicted: float) -> StepFacts:
    return StepFacts(
        step.planned,
        step.committed,
        step.seconds,
        predicted,
        step.plan.chunks,
        {new.row: new.prompt_length for new in step.plan.new_requests},
        step.plan.freed_rows,
        step.plan.padding,
        rejected(step),
        [(one.drafts, one.accepted) for one in verified(step)],
    )
