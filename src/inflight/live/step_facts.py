"""What a frame is made of, wherever it comes from: steps that were computed, and how things are at one moment.

Knows a plan with its result, and a record's line; makes the same of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from inflight.core.types.plan import BatchPlan, StepResult
from inflight.live.frames import BlocksPart, Holder, LanePart
from inflight.records.drafts import rejected, verified
from inflight.records.schema import StepRecord


class ChunkFacts(NamedTuple):
    """in_vain: of its tokens the last ones, drafts that were wrong."""

    sequence: int
    row: int
    start: int
    length: int
    in_vain: int = 0


class StepFacts(NamedTuple):
    """One step. new_rows: row → tokens of the prompt there. padding: lengths of padded runs. verified: of each chunk
    with drafts, how many it had and how many were right. predicted: seconds, 0 where nobody knew."""

    planned: float
    committed: float
    seconds: float
    predicted: float
    chunks: Sequence[ChunkFacts]
    new_rows: Mapping[int, int]
    freed_rows: Sequence[int]
    padding: Sequence[int]
    verified: Sequence[tuple[int, int]] = ()


class Moment(NamedTuple):
    """How things are at a frame's end. holders: of the rows that are held."""

    lanes: Sequence[LanePart]
    blocks: BlocksPart
    holders: Sequence[Holder]


def of_plan(plan: BatchPlan, result: StepResult, planned: float, committed: float, predicted: float) -> StepFacts:
    checked: tuple[tuple[int, int], ...] = ()
    wrong: dict[int, int] = {}
    if any(chunk.num_drafts for chunk in plan.chunks):
        drafts = {chunk.sequence_id: chunk.num_drafts for chunk in plan.chunks if chunk.num_drafts}
        right = {one.sequence_id: max(0, len(one.token_ids) - 1) for one in result.sampled if one.sequence_id in drafts}
        wrong = {number: count - right.get(number, 0) for number, count in drafts.items()}
        checked = tuple((drafts[number], accepted) for number, accepted in right.items())
    return StepFacts(
        planned,
        committed,
        result.seconds,
        predicted,
        [
            ChunkFacts(one.sequence_id, one.row, one.start, one.length, wrong.get(one.sequence_id, 0))
            for one in plan.chunks
        ],
        {new.row: new.prompt_length for new in plan.new_rows},
        plan.freed_rows,
        plan.padding,
        checked,
    )


def of_record(step: StepRecord, predicted: float) -> StepFacts:
    wrong = rejected(step)
    return StepFacts(
        step["planned"],
        step["committed"],
        step["seconds"],
        predicted,
        [
            ChunkFacts(one["sequence"], one["row"], one["start"], one["length"], wrong.get(one["sequence"], 0))
            for one in step["chunks"]
        ],
        {new["row"]: new["prompt_tokens"] for new in step["new_rows"]},
        step["freed_rows"],
        step["padding"],
        [(one.drafts, one.accepted) for one in verified(step)],
    )
