"""The mirror of an input batch: plans leave the same tokens, tables and settings there as in the host's part."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from msgspec import structs

from inflight.core.types.plan import Capacity, Chunk, NewRequest
from inflight.core.types.sampling import SamplingParams
from inflight.execution.backends.torch.buckets import NO_BUCKETS, Buckets
from inflight.execution.backends.torch.definitions import Definitions
from inflight.execution.backends.torch.device_batch import PassStart, mirrored
from inflight.execution.backends.torch.sampling_tensors import Draws
from inflight.execution.backends.torch.upload import Upload, bits
from inflight.execution.batch.input_batch import InputBatch

from ...batch.test_input_batch import new_request

CAPACITY = Capacity(num_blocks=64, block_size=16, max_rows=4, max_model_len=100, vocab_size=50)
TWO_GROUPS = Capacity(64, 16, 4, 100, 50, windows=(0, 24))
PADDING = CAPACITY.num_blocks
CPU = torch.device("cpu")


def made(capacity: Capacity = CAPACITY, buckets: Buckets = NO_BUCKETS) -> InputBatch:
    return mirrored(capacity, capacity.num_blocks, None, CPU, Upload(CPU), buckets)


def prepared(batch: InputBatch, *chunks: Chunk, new: tuple[NewRequest, ...] = ()) -> PassStart:
    batch.update(chunks, new)
    start: PassStart = batch.mirror.begin(batch, chunks, CAPACITY.num_blocks + 1)
    Definitions().begin(start.appended, batch.mirror.tokens, start.tensors)
    return start


def array(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def draws_of(batch: InputBatch, slots: np.ndarray, positions: np.ndarray) -> Draws:
    draws: Draws = batch.mirror.draws(batch, slots, positions)
    return draws


def draw(batch: InputBatch, slot: int, position: int, token: int) -> None:
    batch.mirror.keep(draws_of(batch, array(slot), array(position)), torch.tensor([token], dtype=torch.int32))


def test_a_pass_finds_the_chunks_of_many_rows() -> None:
    batch = made()
    chunks = [Chunk(1, 2, 0, 20, (5, 3), False), Chunk(2, 0, 0, 3, (9,), True)]
    found = prepared(batch, *chunks, new=(new_request(2, list(range(40))), new_request(0, [7, 8, 9]))).tensors
    assert found.token_ids.tolist() == [*range(20), 7, 8, 9]
    assert found.positions.tolist() == [*range(20), 0, 1, 2]
    assert found.chunk_of.tolist() == [0] * 20 + [1] * 3 and found.rows.tolist() == [2, 0]
    assert (found.query_start.tolist(), found.context_len.tolist()) == ([0, 20, 23], [0, 0])
    assert (found.longest_chunk, found.longest_context) == (20, 20)
    assert found.block_tables[0, 2, :2].tolist() == [5, 3] and found.block_tables[0, 0, 0] == 9
    draw(batch, 0, 2, 30)
    found = prepared(batch, Chunk(2, 0, 3, 1, (), True), Chunk(1, 2, 20, 20, (8,), True)).tensors
    assert found.token_ids.tolist() == [30, *range(20, 40)]
    assert found.block_tables[0, 2, :3].tolist() == [5, 3, 8]


def test_a_decode_reads_what_was_drawn_whether_the_host_knows_it_or_not() -> None:
    batch = made()
    prepared(batch, Chunk(1, 1, 0, 3, (4,), True), new=(new_request(1, [1, 2, 3]),))
    for position, token in enumerate((41, 42, 43), 2):
        draw(batch, 1, position, token)
        assert prepared(batch, Chunk(1, 1, position + 1, 1, (), True)).tensors.token_ids.tolist() == [token]


def test_wrong_drafts_are_written_over_by_what_was_drawn() -> None:
    batch = made()
    prepared(batch, Chunk(1, 1, 0, 3, (4,), True), new=(new_request(1, [1, 2, 3]),))
    draw(batch, 1, 2, 10)
    chunk = Chunk(1, 1, 3, 3, (), 3, draft_token_ids=(11, 12))
    assert prepared(batch, chunk).tensors.token_ids.tolist() == [10, 11, 12]
    draws = draws_of(batch, array(1, 1, 1), array(3, 4, 5))
    assert draws.num_tokens.tolist() == [4, 5, 6]
    batch.mirror.keep(
        draws, torch.tensor([11, 20, 33], dtype=torch.int32)
    )  # the second draft was wrong: 33 counts for nothing
    assert prepared(batch, Chunk(1, 1, 5, 1, (), 1)).tensors.token_ids.tolist() == [20]
    draw(batch, 1, 5, 21)
    assert batch.mirror.tokens[1, :7].tolist() == [1, 2, 3, 10, 11, 20, 21]


def test_what_was_discarded_writes_to_the_padding_block_until_it_is_taken_anew() -> None:
    batch = made()
    prepared(batch, Chunk(1, 1, 0, 20, (4, 5), True), new=(new_request(1, list(range(20))),))
    batch.discard([1])
    found = prepared(batch, Chunk(1, 1, 20, 20, (6,), True)).tensors  # of a step that was planned before
    assert found.token_ids.tolist() == [0] * 20 and (found.block_tables[:, 1] == PADDING).all()
    found = prepared(batch, Chunk(2, 1, 0, 2, (7,), True), new=(new_request(1, [8, 9]),)).tensors
    assert found.token_ids.tolist() == [8, 9] and found.block_tables[0, 1, 0] == 7


def test_padding_goes_to_its_block() -> None:
    batch = made()
    found = prepared(
        batch, Chunk(-1, CAPACITY.max_rows, 0, 30, (), 0), Chunk(-1, CAPACITY.max_rows, 0, 4, (), 0)
    ).tensors
    assert (found.block_tables[:, CAPACITY.max_rows] == PADDING).all()
    assert found.token_ids.tolist() == [0] * 34 and found.positions.tolist() == [*range(30), *range(4)]


def test_each_group_of_layers_has_a_table() -> None:
    batch = made(TWO_GROUPS)
    chunk = Chunk(1, 3, 0, 40, (5, 3, 1), True, window_blocks=((9, 8, 7),))
    found = prepared(batch, chunk, new=(new_request(3, list(range(40))),)).tensors
    assert found.block_tables[:, 3, :3].tolist() == [[5, 3, 1], [9, 8, 7]]


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (Chunk(1, 0, 0, 17, (1,), True), "row 0 computes up to position 17, which needs 2 blocks; its table has 1"),
        (Chunk(1, 0, 0, 3, (65,), True), "block 65 is not in the KV cache, which has 65"),
        (Chunk(1, 0, 0, 3, (-1,), True), "block -1 is not in the KV cache"),
        (Chunk(1, 0, -1, 3, (1,), True), "positions -1 to 2, but those of a sequence are 0 to 100"),
        (Chunk(1, 0, 90, 11, tuple(range(7)), True), "positions 90 to 101"),
        (Chunk(1, 0, 0, 3, tuple(range(8)), True), "a table of 8 blocks is longer than the 7 of 100 tokens"),
    ],
)
def test_what_cannot_be_is_refused_before_the_device_is_asked(chunk: Chunk, message: str) -> None:
    batch = made()
    mirror = batch.mirror
    before = mirror.tokens.clone(), mirror.block_tables.clone()
    with pytest.raises(ValueError, match=message):
        prepared(batch, chunk, new=(new_request(0, list(range(17))),))
    assert torch.equal(before[0], mirror.tokens) and torch.equal(before[1], mirror.block_tables)
    batch.discard([0])  # as a step that failed
    found = prepared(batch, Chunk(2, 0, 0, 2, (7,), True), new=(new_request(0, [8, 9]),)).tensors
    assert found.token_ids.tolist() == [8, 9] and found.block_tables[0, 0, 0] == 7


def test_more_tokens_than_whole_numbers_count_are_refused() -> None:
    with pytest.raises(ValueError, match="lower --max-num-seqs or --max-model-len"):
        made(Capacity(1, 16, 2048, 2**20, 50))


def test_settings_of_the_rows_that_draw_in_their_order() -> None:
    batch, host = made(), InputBatch(CAPACITY, PADDING)
    new = (
        new_request(0, [1, 2, 3], temperature=0.5, top_p=0.9, logit_bias={7: 2.0, 8: -3.0}),
        new_request(3, [1, 2, 3, 4, 5], prompt=2, repetition_penalty=1.5, logprobs=3, allowed_token_ids=(1, 40)),
        new_request(1, [4], temperature=0.0, min_tokens=3, banned=(9, 11)),
    )
    prepared(batch, new=new)
    host.update((), new)
    rows, positions = array(3, 1, 0), array(4, 0, 2)
    ours, theirs = draws_of(batch, rows, positions), host.sampling(rows, positions)
    at = ours.rows.long()
    for name in (
        "temperature",
        "top_p",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "top_k",
        "sample_index",
    ):
        assert getattr(ours.settings, name)[at].tolist() == getattr(theirs, name).tolist(), name
    assert ours.settings.seed[at].tolist() == theirs.seed.astype(np.int64).tolist()
    assert (ours.num_tokens - ours.settings.prompt_length[at]).tolist() == theirs.draw_index.tolist()
    assert ours.bias is not None and ours.allowed is not None and ours.bad is None
    assert ours.bias.start.tolist() == theirs.bias_offsets.tolist()
    assert ours.bias.token_ids.tolist() == theirs.bias_ids.tolist()
    assert ours.bias.values.tolist() == theirs.bias_values.tolist()
    assert ours.allowed[0].tolist() == theirs.allowed[0].view(np.int32).tolist()  # type: ignore[union-attr]
    assert (ours.allowed[1:] == -1).all()
    assert ours.needs_history and ours.filters and not ours.greedy
    assert (ours.want_logprobs, ours.top_logprobs, ours.longest_history) == (True, 3, 5)


def test_what_no_draw_needs_is_left_out() -> None:
    batch = made()
    prepared(
        batch, new=(new_request(0, [1, 2], temperature=0.0), new_request(1, [1], temperature=0.9, top_k=3, logprobs=2))
    )
    plain = draws_of(batch, array(0), array(1))
    assert plain.greedy and not (plain.filters or plain.needs_history or plain.want_logprobs)
    assert plain.bias is plain.bad is plain.allowed is None
    assert draws_of(batch, array(1), array(0)).filters


def test_bad_sequences_come_with_those_that_may_have_begun() -> None:
    batch = made()
    new = NewRequest(0, (1, 2), 2, SamplingParams(), 0, 0, bad_token_ids=((5,), (6, 7), (6, 8, 9)))
    prepared(batch, new=(new_request(1, [3]), new))
    assert draws_of(batch, array(0), array(1)).bad is None  # nothing has been said
    one = draws_of(batch, array(1, 0), array(0, 2)).bad
    assert one is not None and one.start.tolist() == [0, 0, 1] and one.token_ids.tolist() == [6, 7]
    two = draws_of(batch, array(0, 1), array(3, 0)).bad
    assert two is not None and two.start.tolist() == [0, 2, 2]
    assert (two.offsets.tolist(), two.token_ids.tolist()) == ([0, 2, 5], [6, 7, 6, 8, 9])


def test_forced_tokens_are_all_that_is_allowed_by_count() -> None:
    batch = made()
    new = NewRequest(0, (1, 2), 2, SamplingParams(logit_bias={3: 1.0}), 0, 0, forced_token_ids=(33, 34))
    prepared(batch, new=(new,))
    for count, token in enumerate((33, 34)):
        draws = draws_of(batch, array(0), array(1 + count))
        assert draws.allowed is not None and draws.bias is None
        assert [int(word) & 0xFFFFFFFF for word in draws.allowed[0]] == [0, 1 << (token - 32)]
    draws = draws_of(batch, array(0), array(3))
    assert draws.allowed is None and draws.bias is not None and draws.bias.token_ids.tolist() == [3]


def test_the_token_that_is_scored_is_the_one_that_follows() -> None:
    batch = made()
    prepared(batch, new=(new_request(0, [1, 2, 3, 4]), new_request(3, [11, 12, 13, 14, 15])))
    assert batch.mirror.following(array(3, 3, 0), array(1, 3, 2)).tolist() == [13, 15, 4]


@pytest.mark.parametrize("seed", [0, -1, -(2**63), 2**64 - 1])
def test_every_seed_that_is_allowed_keeps_its_bits(seed: int) -> None:
    batch = made()
    prepared(batch, new=(NewRequest(2, (1,), 1, SamplingParams(), seed, 1023),))
    settings = draws_of(batch, array(2), array(0)).settings
    assert (int(settings.seed[2]) % 2**64, int(settings.sample_index[2])) == (seed % 2**64, 1023)


def test_random_plans_against_the_part_of_the_host() -> None:
    chance = random.Random(4)
    batch, host = made(), InputBatch(CAPACITY, PADDING)
    known: dict[int, tuple[int, int, int]] = {}  # row → known tokens, computed, blocks
    for _ in range(150):
        new = []
        for row in range(CAPACITY.max_rows):
            if row not in known or known[row][0] > 90 or chance.random() < 0.05:
                tokens = [chance.randrange(50) for _ in range(chance.randrange(1, 60))]
                new.append(new_request(row, tokens))
                host.update((), new[-1:])
                known[row] = (len(tokens), 0, 0)
        chunks, sampled = [], []
        for row, (count, computed, held) in list(known.items()):
            length = chance.randrange(1, count - computed + 1)
            blocks = tuple(chance.randrange(64) for _ in range(-(-(computed + length) // 16) - held))
            chunks.append(Chunk(row, row, computed, length, blocks, computed + length == count))
            sampled += [row] * (computed + length == count)
            known[row] = (count + (computed + length == count), computed + length, held + len(blocks))
        host.update(chunks)
        inputs, found = host.gather(chunks), prepared(batch, *chunks, new=tuple(new)).tensors
        assert found.token_ids.tolist() == inputs.token_ids.tolist()
        for index, chunk in enumerate(chunks):
            used = -(-(chunk.start + chunk.length) // 16)
            ours = found.block_tables[0, chunk.row, :used].tolist()
            assert ours == inputs.metadata.block_tables[0, index, :used].tolist()
        drawn = np.array([chance.randrange(50) for _ in sampled], np.int32)
        rows, last = np.array(sampled, np.int32), np.array([known[row][1] - 1 for row in sampled], np.int32)
        host.keep(rows, last, drawn)
        draws = draws_of(batch, rows, last)
        batch.mirror.keep(draws, torch.from_numpy(drawn))


@pytest.mark.parametrize("seed", range(6))
def test_steps_that_fail_before_or_behind_their_pass_leave_what_the_host_has(seed: int) -> None:
    """Tokens and tables of every sequence that goes on, and padding in slots that were discarded; drafts among them."""
    chance, batch = random.Random(seed), made()
    mirror = batch.mirror
    running: dict[int, tuple[int, int]] = {}  # slot → known tokens, blocks
    for _ in range(120):
        chunks, new, freed = [], [], [slot for slot in running if chance.random() < 0.1]
        for slot in range(CAPACITY.max_rows):
            if slot in freed or slot not in running or slot in batch.discarded or running[slot][0] > 80:
                new.append(new_request(slot, [chance.randrange(50) for _ in range(chance.randrange(1, 40))]))
                start, known, held = 0, len(new[-1].token_ids), 0
                drafts: tuple[int, ...] = ()
            else:
                start, (known, held) = running[slot][0] - 1, running[slot]
                drafts = tuple(chance.randrange(50) for _ in range(chance.randrange(3)))
            end = known + len(drafts)
            blocks = tuple(chance.randrange(64) for _ in range(-(-end // 16) - held))
            chunks.append(Chunk(slot, slot, start, end - start, blocks, 1 + len(drafts), draft_token_ids=drafts))
            running[slot] = (known + 1, held + len(blocks))
        slots = [chunk.row for chunk in chunks]
        batch.update(chunks, new, freed)
        if chance.random() < 0.2:
            batch.discard(slots)
            continue
        Definitions().begin((start_of := mirror.begin(batch, chunks, 65)).appended, mirror.tokens, start_of.tensors)
        at = np.array(slots, np.int32)
        last = np.array([running[slot][0] - 2 for slot in slots], np.int32)
        drawn = np.array([chance.randrange(50) for _ in slots], np.int32)
        batch.keep(at, last, drawn)
        mirror.keep(draws_of(batch, at, last), torch.from_numpy(drawn))
        if chance.random() < 0.2:
            batch.discard(lost := slots[: chance.randrange(1, len(slots))])
            mirror.begin(batch, [], 65)
            assert not mirror.tokens[lost].any() and (mirror.block_tables[:, lost] == PADDING).all()
        for slot, (known, held) in running.items():
            assert mirror.tokens[slot, :known].tolist() == batch.tokens[slot, :known].tolist()
            assert mirror.block_tables[0, slot, :held].tolist() == batch.block_tables[0, slot, :held].tolist()


def test_a_plans_changes_are_sent_once_with_its_first_pass() -> None:
    """Which may be another's over the same slots, as a draft head's, with tokens shifted."""
    batch = made(TWO_GROUPS)
    start = prepared(batch, Chunk(1, 2, 0, 16, (5,), 1, window_blocks=((9,),)), new=(new_request(2, list(range(16))),))
    assert len(start.appended) == 2
    longer = Chunk(1, 2, 16, 2, (7,), 1, window_blocks=((8,),))
    batch.update([longer])
    sent = batch.mirror.begin(batch.shifted(1), [structs.replace(longer, start=14, length=1)], PADDING).appended
    assert sorted(sent.tolist()) == [[0, 2, 1, 7], [1, 2, 1, 8]]
    assert len(batch.mirror.begin(batch, [longer], PADDING).appended) == 0


def test_one_copy_takes_arrays_of_every_kind() -> None:
    """Long ones too, which do not fit where memory stays; that is another's after the next call."""
    upload = Upload(CPU)
    floats, longs = np.array([1.5, -np.inf], np.float32), np.array([2**62, -3], np.int64)
    ints, none, long = array(1, 2, 3), array(), np.arange(1 << 17, dtype=np.int32)
    sent = upload.send([ints, none, bits(floats), bits(longs), long], keep=1)
    assert sent[0].tolist() == [1, 2, 3] and len(sent[1]) == 0 and sent[4].tolist() == long.tolist()
    assert sent[2].view(torch.float32).tolist() == floats.tolist()
    assert sent[3].view(torch.int64).tolist() == longs.tolist()
    assert all(one.data_ptr() % 16 == 0 for one in (sent[0], sent[2], sent[3]))
    (again,) = upload.send([array(7, 8)], keep=1)
    assert again.data_ptr() == sent[0].data_ptr() and sent[0][:2].tolist() == [7, 8]
