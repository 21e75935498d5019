"""The cost of a plan is a function of the plan alone."""

from __future__ import annotations

from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, Chunk


def test_decodes_and_prefills_are_distinguished() -> None:
    plan = BatchPlan(
        step=0,
        chunks=(
            Chunk(0, 0, 9, 1, (), True),  # reads positions 0 … 9
            Chunk(1, 1, 0, 4, (0,), False),
            Chunk(2, 2, 8, 2, (1, 2, 3), True),
        ),
    )
    assert features(plan) == Features(
        tokens=7, rows=3, samples=2, decode_context=10, prefill_context=4 * (0 + 2) + 2 * (8 + 1)
    )
    assert plan.tokens == 7


def test_scored_positions_cost_output_projections() -> None:
    plan = BatchPlan(0, (Chunk(0, 0, 4, 6, (), True, score=range(6, 9)), Chunk(1, 1, 0, 3, (), False, range(3))))
    assert features(plan).samples == 3 + 1 + 3


def test_every_draft_costs_an_output_projection() -> None:
    plan = BatchPlan(0, (Chunk(0, 0, 10, 3, (), 3, draft_token_ids=(5, 6)),))
    assert features(plan) == Features(tokens=3, rows=1, samples=3, decode_context=0, prefill_context=3 * 11.5)
