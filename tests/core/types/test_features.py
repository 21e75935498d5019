"""The cost of a plan is a function of the plan alone."""

from __future__ import annotations

import pytest
from msgspec import structs

from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, Chunk

DECODE = Chunk(0, 0, 9, 1, (), 1)  # reads positions 0 … 9
PROMPTS = Chunk(1, 1, 0, 4, (0,), 0), Chunk(2, 2, 8, 2, (1, 2, 3), 1)
SCORED = Chunk(0, 0, 4, 6, (), 1, score=range(6, 9)), Chunk(1, 1, 0, 3, (), 0, range(3))
DRAFTS = Chunk(0, 0, 10, 3, (), 3, draft_token_ids=(5, 6), num_drafts=2)


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (
            (DECODE, *PROMPTS),
            Features(7, 3, 2, decode_context=10, prefill_context=4 * (0 + 2) + 2 * (8 + 1), prompt_chunks=2),
        ),
        (SCORED, Features(9, 2, 3 + 1 + 3, decode_context=0, prefill_context=6 * 7 + 3 * 1.5, prompt_chunks=2)),
        ((DRAFTS,), Features(3, 1, 3, decode_context=11, prefill_context=2 * (11 + 1.5), prompt_chunks=0)),
    ],
)
def test_decodes_prompts_scores_and_drafts_are_distinguished(chunks: tuple[Chunk, ...], expected: Features) -> None:
    plan = BatchPlan(0, chunks)
    assert features(plan) == expected and plan.tokens == expected.tokens


def test_drafts_are_no_prompts_where_prompts_are_counted() -> None:
    """Older records do not count them: there, pairs beside those of decodes are a prompt's."""
    drafts = features(BatchPlan(0, (DRAFTS,)))
    assert not drafts.has_prompts and not features(BatchPlan(0, (DECODE,))).has_prompts
    assert features(BatchPlan(0, (DRAFTS, *PROMPTS))).has_prompts
    assert structs.replace(drafts, prompt_chunks=None).has_prompts


def test_padding_counts_as_prompts_where_it_is_longer_than_a_decode() -> None:
    assert features(BatchPlan(0, (DECODE,), padding=(5, 1))) == Features(7, 3, 1, 10, 5 * 2.5 + 0.5, prompt_chunks=1)
