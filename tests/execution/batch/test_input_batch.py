"""The input batch: state of each request slot, compared with the plain lists it stands for."""

from __future__ import annotations

import random

import numpy as np
import pytest
from msgspec import structs

from inflight.core.types.plan import Capacity, Chunk, NewRequest
from inflight.core.types.sampling import SamplingParams
from inflight.execution.backends.protocol import AttentionMetadata
from inflight.execution.batch.input_batch import Changes, InputBatch

CAPACITY = Capacity(num_blocks=64, block_size=16, max_rows=4, max_model_len=100, vocab_size=50)


def new_request(row: int, tokens: list[int], prompt: int | None = None, **settings: object) -> NewRequest:
    banned = settings.pop("banned", ())
    params = SamplingParams(**settings)  # type: ignore[arg-type]
    return NewRequest(row, tuple(tokens), len(tokens) if prompt is None else prompt, params, 9, 1, banned)  # type: ignore[arg-type]


def gathered(batch: InputBatch, chunks: list[Chunk]) -> tuple[np.ndarray, AttentionMetadata]:
    batch.update(chunks)
    inputs = batch.gather(chunks)
    return inputs.token_ids, inputs.metadata


def test_gather_finds_the_chunks_of_many_rows() -> None:
    batch = InputBatch(CAPACITY, CAPACITY.num_blocks)
    batch.update((), [new_request(2, list(range(40)))])
    batch.update((), [new_request(0, [7, 8, 9])])
    tokens, where = gathered(batch, [Chunk(1, 2, 0, 20, (5, 3), False), Chunk(2, 0, 0, 3, (9,), True)])
    assert tokens.tolist() == [*range(20), 7, 8, 9]
    assert where.positions.tolist() == [*range(20), 0, 1, 2]
    assert (where.query_start.tolist(), where.context_len.tolist()) == ([0, 20, 23], [0, 0])
    assert where.block_tables[0, 0, :2].tolist() == [5, 3] and where.block_tables[0, 1, 0] == 9

    batch.keep(np.array([0], np.int32), np.array([2], np.int32), np.array([30], np.int32))
    tokens, where = gathered(batch, [Chunk(2, 0, 3, 1, (), True), Chunk(1, 2, 20, 20, (8,), True)])
    assert tokens.tolist() == [30, *range(20, 40)]
    assert where.positions.tolist() == [3, *range(20, 40)]
    assert where.block_tables[0, 1].tolist() == [5, 3, 8]
    assert {
        array.dtype for array in (tokens, where.positions, where.query_start, where.context_len, where.block_tables)
    } == {np.dtype(np.int32)}


def test_a_new_sequence_finds_nothing_of_the_one_before() -> None:
    batch = InputBatch(CAPACITY, CAPACITY.num_blocks)
    batch.update((), [new_request(1, list(range(30)), logit_bias={3: 1.0}, logprobs=4, temperature=0.5, top_k=9)])
    gathered(batch, [Chunk(1, 1, 0, 30, (1, 2), True)])
    batch.update((), freed=[1])
    batch.update((), [new_request(1, [4, 5], temperature=0.0)])
    tokens, where = gathered(batch, [Chunk(2, 1, 0, 2, (6,), True)])
    assert tokens.tolist() == [4, 5] and where.block_tables.tolist() == [[[6]]]
    draws = batch.sampling(np.array([1], np.int32), np.array([1], np.int32))
    assert (draws.temperature[0], draws.top_k[0], draws.want_logprobs[0], draws.top_logprobs[0]) == (0, 0, False, 0)
    assert draws.bias_offsets.tolist() == [0, 0]


def test_what_is_scored_is_the_token_that_follows() -> None:
    batch = InputBatch(CAPACITY, CAPACITY.num_blocks)
    batch.update((), [new_request(0, [1, 2, 3, 4], prompt_logprobs=0)])
    batch.update((), [new_request(3, [11, 12, 13, 14, 15], prompt_logprobs=7)])
    token_ids, wanted = batch.scoring(np.array([3, 3, 3, 0], np.int32), np.array([1, 2, 3, 2], np.int32))
    assert token_ids.tolist() == [13, 14, 15, 4] and wanted.tolist() == [7, 7, 7, 0]
    assert token_ids.dtype == wanted.dtype == np.int32


def test_settings_of_the_sampled_rows_in_their_order() -> None:
    batch = InputBatch(CAPACITY, CAPACITY.num_blocks)
    batch.update((), [new_request(0, [1, 2, 3], temperature=0.5, top_p=0.9, logit_bias={7: 2.0, 8: -3.0})])
    batch.update((), [new_request(3, [1, 2, 3, 4, 5], prompt=2, repetition_penalty=1.5, logprobs=0)])
    draws = batch.sampling(np.array([3, 0], np.int32), np.array([4, 2], np.int32))
    assert draws.temperature.tolist() == [1.0, 0.5]
    assert draws.draw_index.tolist() == [3, 0]
    assert draws.prompt_lengths.tolist() == [2, 3]
    assert draws.want_logprobs.tolist() == [True, False]
    assert draws.histories[0] is not None and draws.histories[0].tolist() == [1, 2, 3, 4, 5]
    assert draws.histories[1] is None
    assert draws.bias_offsets.tolist() == [0, 0, 2]
    assert dict(zip(draws.bias_ids.tolist(), draws.bias_values.tolist(), strict=True)) == {7: 2.0, 8: -3.0}


def test_settings_are_those_of_the_sequence_that_has_the_slot_now() -> None:
    batch = InputBatch(CAPACITY, CAPACITY.num_blocks)
    slots, positions = np.array([0, 1], np.int32), np.array([2, 2], np.int32)
    batch.update((), [new_request(0, [1, 2, 3], temperature=0.5), new_request(1, [1, 2, 3], temperature=0.7, top_k=4)])
    first, second = (batch.sampling(slots, positions + step) for step in range(2))
    assert first.temperature.tolist() == second.temperature.tolist() == np.float32([0.5, 0.7]).tolist()
    assert (first.draw_index.tolist(), second.draw_index.tolist()) == ([0, 0], [1, 1])
    batch.update((), [new_request(1, [4, 5], temperature=0.2, logprobs=3)], freed=[1])
    draws = batch.sampling(slots, positions)
    assert draws.temperature.tolist() == np.float32([0.5, 0.2]).tolist() and draws.top_k.tolist() == [0, 0]
    assert draws.want_logprobs.tolist() == [False, True] and second.top_k.tolist() == [0, 4]
    assert batch.sampling(slots[::-1].copy(), positions).want_logprobs.tolist() == [True, False]


def test_end_tokens_are_banned_until_enough_was_said() -> None:
    batch = InputBatch(CAPACITY, CAPACITY.num_blocks)
    batch.update((), [new_request(0, [1], min_tokens=2, logit_bias={4: 1.0, 9: 50.0}, banned=(9, 11))])
    row = np.array([0], np.int32)
    for position in range(2):
        draws = batch.sampling(row, np.array([position], np.int32))
        bias = dict(zip(draws.bias_ids.tolist(), draws.bias_values.tolist(), strict=True))
        assert bias == {4: 1.0, 9: -np.inf, 11: -np.inf}
        batch.keep(row, np.array([position], np.int32), np.array([4], np.int32))
    draws = batch.sampling(row, np.array([2], np.int32))
    assert draws.bias_ids.tolist() == [4, 9]


@pytest.mark.parametrize("top_k", [50, 51, 2**31, 10**30])
def test_more_candidates_than_tokens_are_all_of_them(top_k: int) -> None:
    batch = InputBatch(CAPACITY, CAPACITY.num_blocks)
    batch.update((), [new_request(0, [1], top_k=top_k)])
    assert batch.sampling(*np.zeros((2, 1), np.int32)).top_k.tolist() == [50]


@pytest.mark.parametrize("seed", [0, -1, -(2**63), 2**64 - 1])
def test_every_seed_that_is_allowed_fits(seed: int) -> None:
    batch = InputBatch(CAPACITY, CAPACITY.num_blocks)
    batch.update((), [NewRequest(0, (1,), 1, SamplingParams(), seed, 1023)])
    draws = batch.sampling(*np.zeros((2, 1), np.int32))
    assert (int(draws.seed[0]), int(draws.sample_index[0])) == (seed % 2**64, 1023)


def test_random_plans_against_plain_lists() -> None:
    chance = random.Random(4)
    batch = InputBatch(CAPACITY, CAPACITY.num_blocks)
    rows: dict[int, tuple[list[int], int, list[int]]] = {}  # row → known tokens, computed, table
    for _ in range(300):
        for row in range(CAPACITY.max_rows):
            if row not in rows or len(rows[row][0]) > 90 or chance.random() < 0.05:
                tokens = [chance.randrange(50) for _ in range(chance.randrange(1, 60))]
                batch.update((), [new_request(row, tokens)])
                rows[row] = (tokens, 0, [])
        chunks, expected, sampled = [], [], []
        for row, (tokens, computed, table) in list(rows.items()):
            length = chance.randrange(1, len(tokens) - computed + 1)
            end = computed + length
            blocks = [chance.randrange(64) for _ in range(-(-end // 16) - len(table))]
            table.extend(blocks)
            chunks.append(Chunk(row, row, computed, length, tuple(blocks), end == len(tokens)))
            expected.append(tokens[computed:end])
            if end == len(tokens):
                sampled.append(row)
            rows[row] = (tokens, end, table)
        got, where = gathered(batch, chunks)
        assert got.tolist() == [token for part in expected for token in part]
        for index, chunk in enumerate(chunks):
            used = -(-(chunk.start + chunk.length) // 16)
            assert where.block_tables[0, index, :used].tolist() == rows[chunk.row][2][:used]
        drawn = np.array([chance.randrange(50) for _ in sampled], np.int32)
        last = np.array([rows[row][1] - 1 for row in sampled], np.int32)
        batch.keep(np.array(sampled, np.int32), last, drawn)
        for row, token in zip(sampled, drawn.tolist(), strict=True):
            rows[row][0].append(token)


def test_where_one_sequence_cannot_start_none_of_the_step_writes_to_other_blocks() -> None:
    """A later pass of the same step may be in flight already."""
    batch = InputBatch(CAPACITY, CAPACITY.num_blocks)
    batch.update((), [new_request(0, list(range(20)))])
    gathered(batch, [Chunk(1, 0, 0, 20, (5, 6), 1)])
    wrong = structs.replace(new_request(2, [1]), token_ids=(2**40,))
    with pytest.raises(OverflowError):
        batch.update([], [wrong, new_request(0, [1, 2])])
    assert set(gathered(batch, [Chunk(2, 0, 0, 2, (3,), 1)])[1].block_tables[0, 0].tolist()) == {CAPACITY.num_blocks}


def test_each_group_has_tables_of_its_own() -> None:
    batch = InputBatch(structs.replace(CAPACITY, windows=(0, 20, 20)), CAPACITY.num_blocks)
    batch.update((), [new_request(1, list(range(50)))])
    batch.update((), [new_request(3, list(range(9)))])
    gathered(batch, [Chunk(1, 1, 0, 30, (5, 3, 4), 0, window_blocks=((7, 8), (9, 10)))])
    chunks = [
        Chunk(1, 1, 30, 20, (), 1, window_blocks=((11, 12), (13, 14))),
        Chunk(2, 3, 0, 9, (20,), 1, window_blocks=((21,), (22,))),
    ]
    tables = gathered(batch, chunks)[1].block_tables
    assert tables[:, 0, :3].tolist() == [[5, 3, 4], [7, 8, 11], [9, 10, 13]]
    assert tables[:, 1, 0].tolist() == [20, 21, 22] and tables.flags.c_contiguous
    batch.discard([3])
    assert set(gathered(batch, chunks[1:])[1].block_tables.ravel().tolist()) == {CAPACITY.num_blocks}


def test_what_was_drafted_is_written_over_and_blocks_are_appended_once() -> None:
    """Another pass may be over the same slots first: it draws where the model draws later."""
    batch = InputBatch(CAPACITY, CAPACITY.num_blocks)
    batch.update((), [new_request(1, list(range(15)))])
    gathered(batch, [Chunk(1, 1, 0, 15, (5,), 1)])
    row = np.array([1], np.int32)
    batch.keep(row, np.array([14], np.int32), np.array([30], np.int32))
    decode = Chunk(1, 1, 15, 1, (7,), 1)
    batch.update([decode])
    for position, drafted in ((15, 40), (16, 41)):
        where = batch.gather([structs.replace(decode, start=position)]).metadata
        assert where.block_tables[0, 0].tolist() == [5, 7][: position // 16 + 1]
        batch.keep(row, np.array([position], np.int32), np.array([drafted], np.int32))
    inputs = batch.gather([structs.replace(decode, length=3, draft_token_ids=(40, 41), sample=3)])
    assert inputs.token_ids.tolist() == [30, 40, 41] and inputs.metadata.block_tables.tolist() == [[[5, 7]]]
    batch.keep(np.array([1, 1, 1], np.int32), np.array([15, 16, 17], np.int32), np.array([40, 9, 8], np.int32))
    tokens, _ = gathered(batch, [Chunk(1, 1, 17, 1, (), 1)])
    assert tokens.tolist() == [9]


def test_more_tokens_or_blocks_than_a_sequence_has_are_refused() -> None:
    batch = InputBatch(CAPACITY, CAPACITY.num_blocks)
    with pytest.raises(ValueError, match="row 2 begins with 101 tokens, but a sequence has 100 at most"):
        batch.update((), [new_request(2, [1] * 101)])
    with pytest.raises(ValueError, match="a table of 8 blocks is longer than the 7 of 100 tokens"):
        batch.update([Chunk(1, 0, 0, 3, tuple(range(8)), True)], [new_request(0, [1, 2, 3])])


def test_a_batch_without_a_mirror_notes_no_changes() -> None:
    batch = InputBatch(CAPACITY, CAPACITY.num_blocks)
    gathered(batch, [])
    batch.update([Chunk(1, 0, 0, 3, (4,), True)], [new_request(0, [1, 2, 3])])
    batch.set_adapter(0, object())
    batch.discard([0])
    assert batch.changes == Changes()
