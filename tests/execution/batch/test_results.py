"""Arrays of draws, scores and vectors become the plan's types, and sentences where there is no result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inflight.core.types.plan import Chunk, Sampled
from inflight.core.types.sampling import PoolingParams
from inflight.execution.backends.protocol import PassResult, SampledBatch, ScoredBatch
from inflight.execution.batch.results import DrawnRows, PassOutcome, PooledRows, ScoredRows


def array(*numbers: Any, kind: Any = np.int32) -> np.ndarray:
    return np.array(numbers, kind)


def drawn(chunks: Sequence[Chunk], of: Sequence[int], tokens: Sequence[int], **others: Any) -> PassResult:
    """Draw tokens for chunks; others: fields of `DrawnRows`."""
    count, outcome = len(of), PassOutcome(chunks)
    none = np.zeros((count, 0), np.int32)
    rows = DrawnRows(
        of=array(*of),
        positions=np.arange(7, 7 + count, dtype=np.int32),
        want_logprobs=np.zeros(count, np.bool_),
        top_logprobs=np.zeros(count, np.int32),
        token_ids=array(*tokens),
        is_finite=np.ones(count, np.bool_),
        was_banned=lambda row: False,
        scores=SampledBatch(array(*tokens), np.zeros(count, np.float32), none, none.astype(np.float32)),
    )
    outcome.drawn.append(rows._replace(**others))
    return outcome.finish().result()


def chunk(number: int, drafts: tuple[int, ...] = ()) -> Chunk:
    return Chunk(number, number, 5, 1 + len(drafts), (), 1 + len(drafts), draft_token_ids=drafts)


def test_a_draw_of_each_chunk() -> None:
    result = drawn([chunk(3), chunk(8)], (0, 1), (41, 42))
    assert list(result.sampled) == [Sampled(3, (41,)), Sampled(8, (42,))] and result.finished > 0


def test_drafts_count_up_to_the_first_that_is_wrong() -> None:
    chunks = [chunk(1, (5, 6)), chunk(2, (5, 6)), chunk(3)]
    result = drawn(chunks, (0, 0, 0, 1, 1, 1, 2), (5, 6, 7, 5, 9, 7, 4))
    assert [one.token_ids for one in result.sampled] == [(5, 6, 7), (5, 9), (4,)]


def test_log_probabilities_are_those_that_are_wanted() -> None:
    scores = ScoredBatch(
        array(-1.5, -2.5, kind=np.float32), array([4, 5], [6, 7]), array([-0.5, -1.0], [-2.0, -3.0], kind=np.float32)
    )
    wants = {"want_logprobs": array(False, True, kind=np.bool_), "top_logprobs": array(2, 1), "scores": scores}
    first, second = drawn([chunk(1), chunk(2)], (0, 1), (41, 42), **wants).sampled
    assert first.logprobs is None and second.logprobs is not None
    (entry,) = second.logprobs
    assert (entry.token_id, entry.logprob, list(entry.top)) == (42, -2.5, [(6, -2.0)])


def test_a_row_without_a_finite_logit_has_a_sentence() -> None:
    finite = {"is_finite": array(False, False, kind=np.bool_), "was_banned": lambda row: row == 1}
    first, second = drawn([chunk(1), chunk(2)], (0, 1), (0, 0), **finite).sampled
    assert "logits after 8 tokens are not finite" in str(first.error) and not first.by_request
    assert "After 9 tokens, grammar, allowed_token_ids" in str(second.error) and second.by_request


def test_behind_a_right_draft_a_row_without_a_draw_is_drawn_again() -> None:
    (one,) = drawn([chunk(1, (5,))], (0, 0), (5, 0), is_finite=array(True, False, kind=np.bool_)).sampled
    assert one == Sampled(1, (5,))
    (one,) = drawn([chunk(1, (5,))], (0, 0), (0, 0), is_finite=array(False, False, kind=np.bool_)).sampled
    assert one.error is not None


def test_scores_and_vectors_that_are_not_finite_have_a_sentence() -> None:
    outcome, nan = PassOutcome([chunk(1), chunk(2)]), np.float32(np.nan)
    none = np.zeros((2, 0), np.int32)
    scores = ScoredBatch(array(-1.0, nan, kind=np.float32), none, none.astype(np.float32))
    outcome.scored.append(ScoredRows(array(0, 1), array(4, 4), array(0, 0), array(9, 8), scores))
    plain = PoolingParams(normalize=False)
    outcome.pooled.append(PooledRows(array(0, 1), [plain, plain], array([1.0, 2.0], [nan, 0.0], kind=np.float32)))
    result = outcome.finish().result()
    assert [(one.sequence_id, one.start, one.error is None) for one in result.scored] == [(1, 5, True), (2, 5, False)]
    assert result.pooled[0].vector == (1.0, 2.0) and "hidden state after 6 tokens" in str(result.pooled[1].error)
