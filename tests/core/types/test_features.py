"""The cost of a plan is a function of the plan alone."""

from __future__ import annotations

import pytest

from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, Chunk

DECODE = Chunk(0, 0, 9, 1, (), 1)  # reads positions 0 … 9
PROMPTS = Chunk(1, 1, 0, 4, (0,), 0), Chunk(2, 2, 8, 2, (1, 2, 3), 1)
SCORED = Chunk(0, 0, 4, 6, (), 1, score=range(6, 9)), Chunk(1, 1, 0, 3, (), 0, range(3))
DRAFTS = Chunk(0, 0, 10, 3, (), 3, draft_token_ids=(5, 6))


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ((DECODE, *PROMPTS), Features(7, 3, 2, decode_context=10, prefill_context=4 * (0 + 2) + 2 * (8 + 1))),
        (SCORED, Features(9, 2, 3 + 1 + 3, decode_context=0, prefill_context=6 * 7 + 3 * 1.5)),
        ((DRAFTS,), Features(3, 1, 3, decode_context=0, prefill_context=3 * 11.5)),
    ],
)
def test_decodes_prompts_scores_and_drafts_are_distinguished(chunks: tuple[Chunk, ...], expected: Features) -> None:
    plan = BatchPlan(0, chunks)
    assert features(plan) == expected and plan.tokens == expected.tokens
