"""Facts of a step that an engine has computed."""

from __future__ import annotations

from inflight.core.types.plan import BatchPlan, Chunk, Sampled, StepResult
from inflight.live.step_facts import of_plan


def test_drafts_of_a_draw_that_waits_for_its_mask_are_not_verified_yet() -> None:
    chunks = tuple(Chunk(number, number, 4, 3, (), 3, draft_token_ids=(7, 8), num_drafts=2) for number in range(2))
    result = StepResult(1, (Sampled(0, (), waits_for=-1), Sampled(1, (7, 9))), 0.1)
    assert of_plan(BatchPlan(1, chunks), result, 0.0, 0.1, 0.1).verified == ((2, 1),)
