"""Request slots: what is kept of each row, compared with the plain lists it stands for."""

from __future__ import annotations

import random

import numpy as np
import pytest
from msgspec import structs

from inflight.core.types.plan import Capacity, Chunk, NewRequest
from inflight.core.types.sampling import SamplingParams
from inflight.execution.backends.protocol import AttentionMetadata, KVShape
from inflight.execution.backends.reference import ReferenceBackend
from inflight.execution.backends.slots import RequestSlots

CAPACITY = Capacity(num_blocks=64, block_size=16, max_rows=4, max_model_len=100, vocab_size=50)


def new_request(row: int, tokens: list[int], prompt: int | None = None, **settings: object) -> NewRequest:
    banned = settings.pop("banned", ())
    params = SamplingParams(**settings)  # type: ignore[arg-type]
    return NewRequest(row, tuple(tokens), len(tokens) if prompt is None else prompt, params, 9, 1, banned)  # type: ignore[arg-type]


def gathered(store: RequestSlots, chunks: list[Chunk]) -> tuple[np.ndarray, AttentionMetadata]:
    inputs = store.gather(chunks)
    return inputs.token_ids, inputs.metadata


def test_gather_finds_the_chunks_of_many_rows() -> None:
    store = RequestSlots(CAPACITY, CAPACITY.num_blocks)
    store.start(new_request(2, list(range(40))))
    store.start(new_request(0, [7, 8, 9]))
    tokens, where = gathered(store, [Chunk(1, 2, 0, 20, (5, 3), False), Chunk(2, 0, 0, 3, (9,), True)])
    assert tokens.tolist() == [*range(20), 7, 8, 9]
    assert where.positions.tolist() == [*range(20), 0, 1, 2]
    assert (where.query_start.tolist(), where.context_len.tolist()) == ([0, 20, 23], [0, 0])
    assert where.block_tables[0, 0, :2].tolist() == [5, 3] and where.block_tables[0, 1, 0] == 9

    store.keep(np.array([0], np.int32), np.array([2], np.int32), np.array([30], np.int32))
    tokens, where = gathered(store, [Chunk(2, 0, 3, 1, (), True), Chunk(1, 2, 20, 20, (8,), True)])
    assert tokens.tolist() == [30, *range(20, 40)]
    assert where.positions.tolist() == [3, *range(20, 40)]
    assert where.block_tables[0, 1].tolist() == [5, 3, 8]
    assert {
        array.dtype for array in (tokens, where.positions, where.query_start, where.context_len, where.block_tables)
    } == {np.dtype(np.int32)}


def test_a_new_sequence_finds_nothing_of_the_one_before() -> None:
    store = RequestSlots(CAPACITY, CAPACITY.num_blocks)
    store.start(new_request(1, list(range(30)), logit_bias={3: 1.0}, logprobs=4, temperature=0.5, top_k=9))
    store.gather([Chunk(1, 1, 0, 30, (1, 2), True)])
    store.free(1)
    store.start(new_request(1, [4, 5], temperature=0.0))
    tokens, where = gathered(store, [Chunk(2, 1, 0, 2, (6,), True)])
    assert tokens.tolist() == [4, 5] and where.block_tables.tolist() == [[[6]]]
    batch = store.sampling(np.array([1], np.int32), np.array([1], np.int32))
    assert (batch.temperature[0], batch.top_k[0], batch.want_logprobs[0], batch.top_logprobs[0]) == (0, 0, False, 0)
    assert batch.bias_offsets.tolist() == [0, 0]


def test_what_is_scored_is_the_token_that_follows() -> None:
    store = RequestSlots(CAPACITY, CAPACITY.num_blocks)
    store.start(new_request(0, [1, 2, 3, 4], prompt_logprobs=0))
    store.start(new_request(3, [11, 12, 13, 14, 15], prompt_logprobs=7))
    token_ids, wanted = store.scoring(np.array([3, 3, 3, 0], np.int32), np.array([1, 2, 3, 2], np.int32))
    assert token_ids.tolist() == [13, 14, 15, 4] and wanted.tolist() == [7, 7, 7, 0]
    assert token_ids.dtype == wanted.dtype == np.int32


def test_settings_of_the_sampled_rows_in_their_order() -> None:
    store = RequestSlots(CAPACITY, CAPACITY.num_blocks)
    store.start(new_request(0, [1, 2, 3], temperature=0.5, top_p=0.9, logit_bias={7: 2.0, 8: -3.0}))
    store.start(new_request(3, [1, 2, 3, 4, 5], prompt=2, repetition_penalty=1.5, logprobs=0))
    batch = store.sampling(np.array([3, 0], np.int32), np.array([4, 2], np.int32))
    assert batch.temperature.tolist() == [1.0, 0.5]
    assert batch.draw_index.tolist() == [3, 0]
    assert batch.prompt_lengths.tolist() == [2, 3]
    assert batch.want_logprobs.tolist() == [True, False]
    assert batch.histories[0] is not None and batch.histories[0].tolist() == [1, 2, 3, 4, 5]
    assert batch.histories[1] is None
    assert batch.bias_offsets.tolist() == [0, 0, 2]
    assert dict(zip(batch.bias_ids.tolist(), batch.bias_values.tolist(), strict=True)) == {7: 2.0, 8: -3.0}


def test_end_tokens_are_banned_until_enough_was_said() -> None:
    store = RequestSlots(CAPACITY, CAPACITY.num_blocks)
    store.start(new_request(0, [1], min_tokens=2, logit_bias={4: 1.0, 9: 50.0}, banned=(9, 11)))
    row = np.array([0], np.int32)
    for position in range(2):
        batch = store.sampling(row, np.array([position], np.int32))
        bias = dict(zip(batch.bias_ids.tolist(), batch.bias_values.tolist(), strict=True))
        assert bias == {4: 1.0, 9: -np.inf, 11: -np.inf}
        store.keep(row, np.array([position], np.int32), np.array([4], np.int32))
    batch = store.sampling(row, np.array([2], np.int32))
    assert batch.bias_ids.tolist() == [4, 9]


@pytest.mark.parametrize("top_k", [50, 51, 2**31, 10**30])
def test_more_candidates_than_tokens_are_all_of_them(top_k: int) -> None:
    store = RequestSlots(CAPACITY, CAPACITY.num_blocks)
    store.start(new_request(0, [1], top_k=top_k))
    assert store.sampling(*np.zeros((2, 1), np.int32)).top_k.tolist() == [50]


@pytest.mark.parametrize("seed", [0, -1, -(2**63), 2**64 - 1])
def test_every_seed_that_is_allowed_fits(seed: int) -> None:
    store = RequestSlots(CAPACITY, CAPACITY.num_blocks)
    store.start(NewRequest(0, (1,), 1, SamplingParams(), seed, 1023))
    batch = store.sampling(*np.zeros((2, 1), np.int32))
    assert (int(batch.seed[0]), int(batch.sample_index[0])) == (seed % 2**64, 1023)


def test_random_plans_against_plain_lists() -> None:
    chance = random.Random(4)
    store = RequestSlots(CAPACITY, CAPACITY.num_blocks)
    rows: dict[int, tuple[list[int], int, list[int]]] = {}  # row → known tokens, computed, table
    for _ in range(300):
        for row in range(CAPACITY.max_rows):
            if row not in rows or len(rows[row][0]) > 90 or chance.random() < 0.05:
                tokens = [chance.randrange(50) for _ in range(chance.randrange(1, 60))]
                store.start(new_request(row, tokens))
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
        got, where = gathered(store, chunks)
        assert got.tolist() == [token for part in expected for token in part]
        for index, chunk in enumerate(chunks):
            used = -(-(chunk.start + chunk.length) // 16)
            assert where.block_tables[0, index, :used].tolist() == rows[chunk.row][2][:used]
        drawn = np.array([chance.randrange(50) for _ in sampled], np.int32)
        last = np.array([rows[row][1] - 1 for row in sampled], np.int32)
        store.keep(np.array(sampled, np.int32), last, drawn)
        for row, token in zip(sampled, drawn.tolist(), strict=True):
            rows[row][0].append(token)


def test_where_one_row_cannot_be_started_none_of_the_step_writes_to_anybodys_blocks() -> None:
    """A later pass of the same step may be in flight already."""
    backend = ReferenceBackend("float32")
    slots = backend.request_slots(CAPACITY, CAPACITY.num_blocks)
    slots.start(new_request(0, list(range(20))))
    slots.gather([Chunk(1, 0, 0, 20, (5, 6), 1)])
    wrong = structs.replace(new_request(2, [1]), token_ids=(2**40,))
    cache = backend.kv_cache(KVShape.uniform(1, CAPACITY.block_size, 1, 16), CAPACITY.num_blocks + 1)
    with pytest.raises(OverflowError):
        backend.prepare(slots, cache, [], [wrong, new_request(0, [1, 2])])
    assert set(gathered(slots, [Chunk(2, 0, 0, 2, (3,), 1)])[1].block_tables[0, 0].tolist()) == {CAPACITY.num_blocks}


def test_each_group_has_tables_of_its_own() -> None:
    store = RequestSlots(structs.replace(CAPACITY, windows=(0, 20, 20)), CAPACITY.num_blocks)
    store.start(new_request(1, list(range(50))))
    store.start(new_request(3, list(range(9))))
    store.gather([Chunk(1, 1, 0, 30, (5, 3, 4), 0, window_blocks=((7, 8), (9, 10)))])
    chunks = [
        Chunk(1, 1, 30, 20, (), 1, window_blocks=((11, 12), (13, 14))),
        Chunk(2, 3, 0, 9, (20,), 1, window_blocks=((21,), (22,))),
    ]
    tables = gathered(store, chunks)[1].block_tables
    assert tables[:, 0, :3].tolist() == [[5, 3, 4], [7, 8, 11], [9, 10, 13]]
    assert tables[:, 1, 0].tolist() == [20, 21, 22] and tables.flags.c_contiguous
    store.discard([3])
    assert set(gathered(store, chunks[1:])[1].block_tables.ravel().tolist()) == {CAPACITY.num_blocks}


def test_what_was_drafted_is_written_over_and_blocks_are_appended_once() -> None:
    """Another pass may be over the same slots first: it draws where the model draws later."""
    store = RequestSlots(CAPACITY, CAPACITY.num_blocks)
    store.start(new_request(1, list(range(15))))
    store.gather([Chunk(1, 1, 0, 15, (5,), 1)])
    row = np.array([1], np.int32)
    store.keep(row, np.array([14], np.int32), np.array([30], np.int32))
    decode = Chunk(1, 1, 15, 1, (7,), 1)
    store.append_blocks([decode])
    for position, drafted in ((15, 40), (16, 41)):
        tokens, where = gathered(store, [structs.replace(decode, start=position, new_blocks=())])
        assert where.block_tables[0, 0].tolist() == [5, 7][: position // 16 + 1]
        store.keep(row, np.array([position], np.int32), np.array([drafted], np.int32))
    tokens, where = gathered(
        store, [structs.replace(decode, length=3, new_blocks=(), draft_token_ids=(40, 41), sample=3)]
    )
    assert tokens.tolist() == [30, 40, 41] and where.block_tables.tolist() == [[[5, 7]]]
    store.keep(np.array([1, 1, 1], np.int32), np.array([15, 16, 17], np.int32), np.array([40, 9, 8], np.int32))
    tokens, _ = gathered(store, [Chunk(1, 1, 17, 1, (), 1)])
    assert tokens.tolist() == [9]
