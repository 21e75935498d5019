"""Request slots on a device: each sequence's tokens, block tables, adapters and sampling settings, and what a step
changes there.

Knows plans, and which numbers go where; not what is computed of them. Values live on the device alone: the host keeps
how many blocks a row has, which rows are unused, and what a draw's shape depends on. What is drawn is put behind the
position that it was drawn at, by the device itself, so that the next pass finds it there; drafts that were wrong are
written over so, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from inflight.core.types.plan import Capacity, Chunk, NewRequest
from inflight.execution.backends.pass_layout import PassLayout, StatePositions, laid_out
from inflight.execution.backends.protocol import Array, StateMetadata
from inflight.execution.backends.row_settings import RowSettings
from inflight.execution.backends.token_bias import NO_BIAS, TokenBias, both
from inflight.execution.backends.token_bias import Bias as Added
from inflight.execution.backends.torch.adapter_rows import AdapterRows, tiled
from inflight.execution.backends.torch.adapters import AdapterTables
from inflight.execution.backends.torch.buckets import NO_BUCKETS, Bucket, Buckets, filled_up
from inflight.execution.backends.torch.memory import DeviceStates
from inflight.execution.backends.torch.sampling_tensors import BadSequences, Bias, Draws, DrawSettings
from inflight.execution.backends.torch.tensors import PassTensors, StateTensors
from inflight.execution.backends.torch.upload import Upload, bits

_ALL = np.int32(-1)  # every bit: each token may be drawn


class PassStart(NamedTuple):
    """A pass as it begins. appended int32[N, 4]: of blocks that are new in the tables group, slot, place and number.
    bucket: as `capture.CapturablePass` has it. adapted: None where no row has an adapter."""

    layout: PassLayout
    tensors: PassTensors
    states: StateTensors | None
    appended: Tensor
    bucket: Bucket | None
    adapted: AdapterRows | None


class DeviceSlots:
    def __init__(
        self,
        capacity: Capacity,
        padding_block: int,
        states: DeviceStates | None,
        device: torch.device,
        upload: Upload,
        buckets: Buckets = NO_BUCKETS,
    ) -> None:
        """padding_block: the block to which padding writes its keys and values; it is never read. states: of a model
        with recurrent layers, where buckets are of rows alone. buckets: sizes to which passes are padded. Raises
        ValueError for more tokens than whole numbers of 32 bits count."""
        rows, length = capacity.max_rows + 1, capacity.max_model_len + 1
        if rows * length >= 2**31:
            raise ValueError(
                f"{rows} rows of {length:,} tokens are more than a device's tables of 2^31 numbers hold; lower "
                "--max-num-seqs or --max-model-len"
            )
        self.states = states
        self._capacity, self._padding_block, self._upload = capacity, padding_block, upload
        self._buckets = buckets
        groups, width = len(capacity.windows), -(-capacity.max_model_len // capacity.block_size)
        self.tokens = torch.zeros((rows, length), dtype=torch.int32, device=device)
        self.block_tables = torch.zeros((groups, rows, width), dtype=torch.int32, device=device)
        self.block_tables[:, capacity.max_rows] = padding_block
        self.settings = RowSettings(rows, capacity.vocab_size)
        self.adapters = AdapterTables(capacity.adapter_slots, device, upload)
        self._of_draws = _SettingsTensors(rows, device)
        self._num_blocks = np.zeros((groups, rows), np.int32)  # entries used of each table
        self._state_positions = StatePositions(rows)
        self._void = {capacity.max_rows}  # rows whose blocks are not theirs
        self._ahead = 0

    @property
    def read_tokens(self) -> Tensor:
        """As a pass reads them: that of position p stands at p."""
        return self.tokens[:, self._ahead :]

    def shifted(self, ahead: int) -> Self:
        """As `slots.RequestSlots` has it."""
        seen = copy(self)
        seen._ahead = ahead
        return seen

    # -- between passes ---------------------------------------------------------------------------------------------
    def discard(self, rows: Sequence[int]) -> None:
        """Treat these rows as padding until a new sequence starts in them."""
        if not rows:
            return
        self._void.update(rows)
        self.block_tables[:, list(rows)] = self._padding_block
        self.tokens[list(rows)] = 0

    def prepare(
        self, chunks: Sequence[Chunk], num_blocks: int, new: Sequence[NewRequest], freed: Sequence[int]
    ) -> PassStart:
        """Slots are given up, then taken; then the pass's place in all of them. num_blocks: of the device. Raises
        ValueError for positions or blocks that cannot be; then nothing has been written on the device."""
        for row in freed:
            self.settings.free(row)
        try:
            for one in new:
                self._start(one)
        except BaseException:  # a later pass of the step may be in flight, with rows that have not started
            self.discard([one.row for one in new])
            raise
        bucket = self._buckets.of(chunks)
        chunks = filled_up(chunks, bucket, self._capacity.max_rows)
        appended = self._append(chunks, num_blocks)
        layout = laid_out(chunks)
        self._check(chunks, layout)
        moves = None if self.states is None else self._state_positions.advance(chunks, layout, self._void)
        return self._send(layout, moves, appended, self._token_writes(chunks, new), new, bucket)

    def append_blocks(self, chunks: Sequence[Chunk], num_blocks: int) -> None:
        """Append the chunks' new blocks to their tables, before a pass begins over them."""
        appended = self._append(chunks, num_blocks)
        if len(appended):
            group, row, place, block = self._upload.send([np.ascontiguousarray(one) for one in appended.T])
            self.block_tables[group.long(), row.long(), place.long()] = block

    def _start(self, new: NewRequest) -> None:
        if len(new.token_ids) > self._capacity.max_model_len:
            raise ValueError(
                f"row {new.row} begins with {len(new.token_ids):,} tokens, but a sequence has "
                f"{self._capacity.max_model_len:,} at most"
            )
        self.settings.start(new)
        self._void.discard(new.row)
        self._num_blocks[:, new.row] = 0
        self._state_positions.start(new.row, new.snapshot)
        if self.states is not None and new.snapshot >= 0:
            self.states.begin(new.row, new.snapshot)

    def _append(self, chunks: Sequence[Chunk], num_blocks: int) -> Array:
        """int32[N, 4], of the chunks' new blocks: group, slot, place in its table, number."""
        found: list[tuple[int, int, int, int]] = []
        for chunk in chunks:
            if chunk.row not in self._void and (chunk.new_blocks or chunk.window_blocks):
                for group, blocks in enumerate((chunk.new_blocks, *chunk.window_blocks)):
                    used = int(self._num_blocks[group, chunk.row])
                    found += [(group, chunk.row, used + place, block) for place, block in enumerate(blocks)]
                    self._num_blocks[group, chunk.row] += len(blocks)
        appended = np.array(found, np.int32).reshape(-1, 4)
        if len(appended) and not 0 <= appended[:, 3].min() <= appended[:, 3].max() < num_blocks:
            worst = appended[:, 3].min() if appended[:, 3].min() < 0 else appended[:, 3].max()
            raise ValueError(f"block {worst} is not in the KV cache, which has {num_blocks:,}")
        if len(appended) and appended[:, 2].max() >= self.block_tables.shape[2]:
            raise ValueError(
                f"a table of {appended[:, 2].max() + 1:,} blocks is longer than the {self.block_tables.shape[2]:,} of "
                f"{self._capacity.max_model_len:,} tokens"
            )
        return appended

    def _check(self, chunks: Sequence[Chunk], layout: PassLayout) -> None:
        """Check indices: one that is out of bounds would end the device's context, and all requests with it."""
        ends = layout.context_len + layout.lengths
        if len(chunks) and (layout.context_len.min() < 0 or ends.max() > self._capacity.max_model_len):
            raise ValueError(
                f"a chunk computes positions {layout.context_len.min()} to {ends.max()}, but those of a sequence are 0 "
                f"to {self._capacity.max_model_len:,}"
            )
        needed = -(-ends // self._capacity.block_size)
        for index in np.flatnonzero(needed > self._num_blocks[:, layout.rows].min(axis=0)).tolist():
            if (row := chunks[index].row) not in self._void:
                raise ValueError(
                    f"row {row} computes up to position {ends[index]:,}, which needs {needed[index]} blocks; its table "
                    f"has {self._num_blocks[:, row].min()}"
                )

    def _token_writes(self, chunks: Sequence[Chunk], new: Sequence[NewRequest]) -> tuple[Array, Array]:
        """Where in all tokens, as one line, tokens are put, and which: of new rows, and drafts, which stand at the end
        of their chunks."""
        width, places, tokens = self.tokens.shape[1], [], []
        for one in new:
            places.append(np.arange(len(one.token_ids), dtype=np.int32) + one.row * width)
            tokens.append(np.array(one.token_ids, np.int32))
        for chunk in chunks:
            if chunk.draft_token_ids and chunk.row not in self._void:
                end, count = chunk.row * width + chunk.start + chunk.length, len(chunk.draft_token_ids)
                places.append(np.arange(end - count, end, dtype=np.int32))
                tokens.append(np.array(chunk.draft_token_ids, np.int32))
        none = [np.zeros(0, np.int32)]
        return np.concatenate(places or none), np.concatenate(tokens or none)

    def _send(
        self,
        layout: PassLayout,
        moves: StateMetadata | None,
        appended: Array,
        writes: tuple[Array, Array],
        new: Sequence[NewRequest],
        bucket: Bucket | None,
    ) -> PassStart:
        """Send all inputs in one copy. Tokens, chunks and states of passes of one bucket lie at the same addresses;
        behind them, if any row has an adapter, which row has which."""
        of_states: list[Array] = []
        if moves is not None and self.states is not None:
            spare = np.zeros(0 if bucket is None else bucket.tokens - len(moves.slots), np.int32)  # so that none moves
            slots = moves.slots + np.int32(self.states.first_snapshot)
            of_states = [moves.snapshot_start, *(np.concatenate([one, spare]) for one in (moves.positions, slots))]
        token_ids = np.zeros(len(layout.positions), np.int32)  # looked up on the device
        of_pass = [token_ids, layout.positions, layout.chunk_of, layout.rows, layout.query_start, layout.context_len]
        slots_of = self.adapters.slots_of(self.settings.adapter_slot[layout.row_of])
        of_adapters = () if slots_of is None else tiled(slots_of, self.adapters.num_slots)
        of_start = [*of_pass, *of_states, *of_adapters]
        changed = [*writes, *_SettingsTensors.lines([one.row for one in new], self.settings)] if new else [*writes]
        sent = iter(self._upload.send([*of_start, appended.ravel(), *changed], len(of_start)))
        tensors = PassTensors(
            token_ids=next(sent),
            positions=next(sent),
            chunk_of=next(sent),
            rows=next(sent),
            query_start=next(sent),
            context_len=next(sent),
            block_tables=self.block_tables,
            block_size=self._capacity.block_size,
            longest_chunk=layout.longest_chunk if bucket is None else bucket.longest_chunk,
            longest_context=layout.longest_context if bucket is None else self._capacity.max_model_len,
        )
        states = StateTensors(next(sent), next(sent), next(sent)) if of_states else None
        adapted = AdapterRows(next(sent), next(sent)) if of_adapters else None
        found = PassStart(layout, tensors, states, next(sent).view(-1, 4), bucket, adapted)
        places, tokens = next(sent), next(sent)
        if len(places):
            self.tokens.view(-1).index_copy_(0, places.long(), tokens)
        if new:
            self._of_draws.write(*sent)
        return found

    # -- what is drawn ----------------------------------------------------------------------------------------------
    def draws(self, rows: Array, positions: Array, masks: Sequence[Array | None] | None = None) -> Draws:
        """Draws behind positions int32[S] of rows int32[S]; what stands up to there counts as known. masks: bits of
        what may be drawn, beside what the settings allow."""
        settings, positions = self.settings, positions + np.int32(self._ahead)
        prompt_lengths, top_k, top_logprobs = settings.integers.take(rows, axis=1)
        temperature, top_p, min_p = settings.floats[:3].take(rows, axis=1)
        num_tokens = np.maximum(positions + 1, prompt_lengths)  # of a row that was discarded there may be fewer
        rules: list[TokenBias | None] = [settings.biases.get(row) for row in rows.tolist()]
        arrays, has_allowed, is_bound = [rows, num_tokens], False, masks is not None or any(rules)
        if is_bound:
            counts = (num_tokens - prompt_lengths).tolist()
            after = [None if rule is None else rule.after(count) for rule, count in zip(rules, counts, strict=True)]
            arrays += _bias_arrays([None if one is None else one[0] for one in after]) + _bad_arrays(rules, counts)
            own = [None if one is None else one[1] for one in after]
            has_allowed = len(allowed := _allowed(own, masks, settings.vocab_size)) > 0
            arrays.append(allowed)
        sent = self._upload.send(arrays)
        bias = Bias(sent[2], sent[3], sent[4].view(torch.float32)) if is_bound and len(sent[3]) else None
        bad = BadSequences(*sent[5:8]) if is_bound and len(sent[7]) else None
        drawn = temperature > 0
        wanted = settings.want_logprobs[rows]
        return Draws(
            settings=self._of_draws.tensors,
            rows=sent[0],
            num_tokens=sent[1],
            tokens=self.tokens,
            needs_history=bool(settings.histories) and not settings.histories.isdisjoint(rows.tolist()),
            filters=bool((drawn & ((top_k > 0) | (top_p < 1) | (min_p > 0))).any()),
            greedy=not drawn.any(),
            longest_history=int(num_tokens.max(initial=0)),
            bias=bias,
            bad=bad,
            allowed=sent[8].view(len(rows), -1) if has_allowed else None,
            want_logprobs=bool(wanted.any()),
            top_logprobs=min(int(np.where(wanted, top_logprobs, 0).max(initial=0)), settings.vocab_size),
        )

    def keep(self, draws: Draws, token_ids: Tensor) -> None:
        """Store drawn tokens behind the tokens that they were drawn from."""
        self.tokens[draws.rows.long(), draws.num_tokens.long()] = token_ids

    def following(self, rows: Array, positions: Array) -> Tensor:
        """Return the tokens behind positions int32[S] of rows int32[S]: int32[S]."""
        (places,) = self._upload.send([rows * np.int32(self.tokens.shape[1]) + positions + np.int32(1)])
        return self.tokens.view(-1).index_select(0, places)


class _SettingsTensors:
    """Settings of all slots on the device, and how those of some are written."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._floats = torch.zeros((6, rows), dtype=torch.float32, device=device)
        self._integers = torch.zeros((2, rows), dtype=torch.int32, device=device)
        self._long = torch.zeros((2, rows), dtype=torch.int64, device=device)
        prompt_length, top_k = self._integers
        seed, sample_index = self._long
        # The order of `row_settings.FLOATS`.
        temperature, top_p, min_p, repetition, presence, frequency = self._floats
        self.tensors = DrawSettings(
            temperature=temperature,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition,
            presence_penalty=presence,
            frequency_penalty=frequency,
            top_k=top_k,
            seed=seed,
            sample_index=sample_index,
            prompt_length=prompt_length,
        )

    @staticmethod
    def lines(rows: Sequence[int], settings: RowSettings) -> list[Array]:
        """As they are sent: rows, floats, whole numbers of 32 bits and of 64."""
        long = np.stack([settings.seed[rows].view(np.int64), settings.sample_index[rows].astype(np.int64)])
        return [
            np.array(rows, np.int32),
            bits(settings.floats[:, rows]),
            bits(settings.integers[:2, rows]),
            bits(long),
        ]

    def write(self, rows: Tensor, floats: Tensor, integers: Tensor, long: Tensor) -> None:
        at = rows.long()
        self._floats.index_copy_(1, at, floats.view(torch.float32).view(-1, len(rows)))
        self._integers.index_copy_(1, at, integers.view(-1, len(rows)))
        self._long.index_copy_(1, at, long.view(torch.int64).view(-1, len(rows)))


def _bias_arrays(added: Sequence[Added | None]) -> list[Array]:
    """`Bias` of S draws, of what is added to each; None: nothing."""
    found = [one for one in added if one is not None]
    start = np.zeros(len(added) + 1, np.int32)
    np.cumsum([0 if one is None else len(one[0]) for one in added], out=start[1:])
    ids, values = (np.concatenate(one) for one in zip(*found, strict=True)) if found else NO_BIAS
    return [start, ids, bits(values)]


def _bad_arrays(rules: Sequence[TokenBias | None], counts: Sequence[int]) -> list[Array]:
    """`BadSequences` of S draws."""
    found = [[] if rule is None else rule.sequences(count) for rule, count in zip(rules, counts, strict=True)]
    all_of = [one for sequences in found for one in sequences]
    start, offsets = np.zeros(len(rules) + 1, np.int32), np.zeros(len(all_of) + 1, np.int32)
    np.cumsum([len(sequences) for sequences in found], out=start[1:])
    np.cumsum([len(one) for one in all_of], out=offsets[1:])
    return [start, offsets, np.array([token for one in all_of for token in one], np.int32)]


def _allowed(found: Sequence[Array | None], masks: Sequence[Array | None] | None, vocab_size: int) -> Array:
    """`Draws.allowed` of S draws, in one line, of the bits that settings and masks leave each; None: all of them. Empty
    where all may draw everything."""
    if masks is not None:
        found = [both(one, mask) for one, mask in zip(found, masks, strict=True)]
    if all(one is None for one in found):
        return np.zeros(0, np.int32)
    words = np.full((len(found), -(-vocab_size // 32)), _ALL, np.int32)
    for line, one in zip(words, found, strict=True):
        if one is not None:
            line[:] = one.view(np.int32)
    return words.ravel()
