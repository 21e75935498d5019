"""The null executor notices what a model would notice."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec import structs

from inflight.core.types.plan import BatchPlan, Capacity, Chunk, NewRequest
from inflight.core.types.sampling import PoolingParams, SamplingParams, TokenLogprob
from inflight.testing.null import NullExecutor

CAPACITY = Capacity(num_blocks=8, block_size=2, max_rows=2, max_model_len=16, vocab_size=1000)


def new_request(tokens: tuple[int, ...], row: int = 0, prompt_length: int | None = None, **fields: Any) -> NewRequest:
    params = fields.pop("params", SamplingParams(temperature=0))
    length = len(tokens) if prompt_length is None else prompt_length
    return NewRequest(row, tokens, length, params, fields.pop("seed", 0), fields.pop("sample_index", 0), **fields)


def first_token(tokens: tuple[int, ...], **fields: Any) -> int:
    executor = NullExecutor(CAPACITY)
    blocks = tuple(range(-(-len(tokens) // 2)))
    plan = BatchPlan(0, (Chunk(0, 0, 0, len(tokens), blocks, True),), (new_request(tokens, **fields),))
    return executor.submit(plan).result().sampled[0].token_ids[0]


def test_the_token_depends_on_all_before_it_and_drawn_ones_on_seed_and_sample() -> None:
    tokens = {first_token(prompt) for prompt in ((1, 2, 3), (9, 2, 3), (1, 9, 3), (1, 2, 9), (2, 1, 3), (1, 2, 3, 0))}
    assert len(tokens) == 6
    assert first_token((1, 2), seed=1) == first_token((1, 2), seed=2, sample_index=1)
    drawn = SamplingParams(temperature=1)
    tokens = {first_token((1, 2), params=drawn, seed=seed, sample_index=index) for seed in (1, 2) for index in (0, 1)}
    assert len(tokens) == 4
    usual = first_token((1, 2))
    params = SamplingParams(temperature=0, min_tokens=1)
    assert first_token((1, 2), params=params, banned_token_ids=(usual,)) != usual
    assert first_token((1, 2), params=params, banned_token_ids=(usual,), prompt_length=1) == usual


def test_sampled_tokens_are_appended_to_the_row_whatever_its_chunks_and_blocks() -> None:
    executor = NullExecutor(CAPACITY)
    neighbour = new_request((7, 7), row=0)
    rows = (neighbour, new_request((1, 2, 3), row=1))
    executor.submit(BatchPlan(0, (Chunk(0, 0, 0, 2, (6,), True), Chunk(1, 1, 0, 1, (5, 0), False)), rows))
    result = executor.submit(BatchPlan(1, (Chunk(1, 1, 1, 2, (), True),))).result()
    assert [sampled.sequence_id for sampled in result.sampled] == [1]
    assert result.sampled[0].token_ids == (first_token((1, 2, 3)),)
    executor = NullExecutor(CAPACITY)
    one = executor.submit(BatchPlan(0, (Chunk(0, 0, 0, 3, (0, 1), True),), (new_request((1, 2, 3)),))).result()
    two = executor.submit(BatchPlan(1, (Chunk(0, 0, 3, 1, (), True),))).result()
    token = one.sampled[0].token_ids[0]
    assert two.sampled[0].token_ids == (first_token((1, 2, 3, token)),)


def test_a_wrong_block_changes_the_tokens() -> None:
    def second(shared: int) -> int:
        executor = NullExecutor(CAPACITY)
        rows = (new_request((1, 2), row=0), new_request((3, 4), row=1))
        executor.submit(BatchPlan(0, (Chunk(0, 0, 0, 2, (0,), True), Chunk(1, 1, 0, 2, (1,), True)), rows))
        reader = new_request((1, 2, 5), row=0)
        plan = BatchPlan(1, (Chunk(2, 0, 2, 1, (shared, 2), True),), (reader,), freed_rows=(0,))
        return executor.submit(plan).result().sampled[0].token_ids[0]

    assert second(shared=0) == first_token((1, 2, 5)) != second(shared=1)


def test_mistakes_are_loud() -> None:
    executor = NullExecutor(CAPACITY)
    plan = BatchPlan(0, (Chunk(0, 0, 0, 2, (0,), True),), (new_request((1, 2)),))
    executor.submit(plan)
    with pytest.raises(RuntimeError, match="row 0 was taken twice"):
        executor.submit(plan)
    with pytest.raises(KeyError):  # what was never computed
        executor.submit(BatchPlan(1, (Chunk(1, 1, 2, 1, (4, 5), True),), (new_request((1, 2, 3), row=1),)))


def test_seconds_come_from_the_plan() -> None:
    executor = NullExecutor(CAPACITY, seconds=lambda plan: plan.tokens / 10)
    result = executor.submit(BatchPlan(3, (Chunk(0, 0, 0, 2, (0,), False),), (new_request((1, 2)),))).result()
    assert (result.step, result.seconds, result.sampled, result.error) == (3, 0.2, (), None)
    assert executor.capacity is CAPACITY


def test_scores_depend_on_the_prefix_and_on_the_token() -> None:
    def scores(tokens: tuple[int, ...], score: range) -> tuple[TokenLogprob, ...]:
        row = new_request(tokens, params=SamplingParams(temperature=0, prompt_logprobs=2))
        chunk = Chunk(0, 0, 0, len(tokens), (0, 1), True, score)
        (one,) = NullExecutor(CAPACITY).submit(BatchPlan(0, (chunk,), (row,))).result().scored
        assert (one.sequence_id, one.start) == (0, score.start + 1)
        return one.logprobs

    whole = scores((1, 2, 3, 4), range(3))
    assert [entry.token_id for entry in whole] == [2, 3, 4]
    assert all(len(entry.top) == 2 and entry.logprob < 0 for entry in whole)
    assert scores((1, 2, 3, 4), range(1, 3)) == whole[1:]
    other = scores((9, 2, 3, 5), range(3))
    assert len({entry.logprob for entry in whole + other}) == 6


def verified(*drafts: int) -> tuple[tuple[int, ...], list[int]]:
    """Tokens behind a prompt and its first token with these drafts, and the tokens of the row."""
    executor = NullExecutor(CAPACITY)
    executor.submit(BatchPlan(0, (Chunk(0, 0, 0, 3, (0, 1), 1),), (new_request((1, 2, 3)),)))
    count = len(drafts)
    chunk = Chunk(0, 0, 3, 1 + count, tuple(range(2, 2 + -(-count // 2))), 1 + count, draft_token_ids=drafts)
    (sampled,) = executor.submit(BatchPlan(1, (chunk,))).result().sampled
    return sampled.token_ids, executor._rows[0].tokens


def test_drafts_count_as_far_as_they_are_right() -> None:
    plain = [1, 2, 3]
    while len(plain) < 7:
        plain.append(first_token(tuple(plain)))
    one, two, three, four = plain[3:]
    for drafts, tokens in (
        ((), (two,)),
        ((two,), (two, three)),
        ((two, three), (two, three, four)),
        ((two, 0), (two, three)),
        ((0, three), (two,)),
    ):
        assert verified(*drafts) == (tokens, [1, 2, 3, one, *tokens])


def test_what_is_forced_is_kept_and_changes_what_follows() -> None:
    executor = NullExecutor(CAPACITY)
    row = new_request((1, 2), forced_token_ids=(7, 8))
    tokens = []
    for step, start in enumerate((0, 2, 3)):
        chunk = Chunk(0, 0, start, 1 if start else 2, ((0,), (1,), ())[step], 1)
        (sampled,) = executor.submit(BatchPlan(step, (chunk,), () if step else (row,))).result().sampled
        tokens += sampled.token_ids
    assert tokens == [7, 8, first_token((1, 2, 7, 8))]


def test_a_vector_is_of_the_last_token_and_of_all_before_it() -> None:
    capacity = structs.replace(CAPACITY, embedding_size=3)

    def vector(tokens: tuple[int, ...], normalize: bool) -> tuple[float, ...]:
        chunk = Chunk(4, 0, 0, len(tokens), (0, 1), 0, pool=True)
        row = new_request(tokens, pooling=PoolingParams(normalize=normalize))
        (pooled,) = NullExecutor(capacity).submit(BatchPlan(0, (chunk,), (row,))).result().pooled
        assert pooled.sequence_id == 4 and pooled.error is None
        return pooled.vector

    raw, unit = vector((1, 2, 3), False), vector((1, 2, 3), True)
    assert math.hypot(*unit) == pytest.approx(1) != pytest.approx(math.hypot(*raw))
    assert raw == pytest.approx([math.hypot(*raw) * one for one in unit])
    assert len({vector(tokens, True) for tokens in ((1, 2, 3), (9, 2, 3), (1, 2, 4), (1, 2))}) == 4
