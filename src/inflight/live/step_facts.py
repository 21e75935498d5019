"""What a frame is made of, wherever it comes from: steps that were computed, and how things are at one moment.

Knows a plan with its result, and a record's line; makes the same of both.
"""

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
    """One step. new_requests: row → tokens of the prompt there.
    padding: lengths of padded runs. in_vain: sequence → its drafts that were wrong, the last tokens of its chunk.
    verified: of each chunk with drafts, how many it had and how many were right. predicted: seconds, 0 where nobody
    knew."""

    planned: float
    committed: float
    seconds: float
    predicted: float
    chunks: Sequence[Chunk]
    new_requests: Mapping[int, int]
    freed_rows: Sequence[int]
    padding: Sequence[int]
    in_vain: Mapping[int, int]
    verified: Sequence[tuple[int, int]] = ()


class Moment(NamedTuple):
    """How things are at a frame's end. holders: of the rows that are held."""

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
