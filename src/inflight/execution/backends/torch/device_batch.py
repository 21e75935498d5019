"""The device's mirror of the input batch: tokens, block tables, adapters and draw settings of all request slots.

A pass reads what changed in the host's part and sends it with its own inputs in one copy. Tokens that are drawn are
kept here alone, by the device itself, behind the position that they were drawn at, so that the next pass finds them
there; drafts that were wrong are overwritten so, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from inflight.core.types.plan import Capacity, Chunk
from inflight.execution.backends.protocol import Array, StateMetadata
from inflight.execution.backends.torch.adapted_matrix import AdapterRows, tiled
from inflight.execution.backends.torch.adapters import AdapterTables
from inflight.execution.backends.torch.buckets import NO_BUCKETS, Bucket, Buckets, filled_up
from inflight.execution.backends.torch.memory import DeviceStates
from inflight.execution.backends.torch.sampling_tensors import BadSequences, Bias, Draws, DrawSettings
from inflight.execution.backends.torch.tensors import PassTensors, StateTensors
from inflight.execution.backends.torch.upload import Upload, bits
from inflight.execution.batch.input_batch import FLOATS, INTEGERS, Changes, InputBatch
from inflight.execution.batch.pass_layout import PassLayout, laid_out

_ALL = np.int32(-1)  # every bit: each token may be drawn
_NONE = np.zeros(0, np.int32)


class PassStart(NamedTuple):
    """A pass as it begins. appended int32[N, 4]: of blocks that are new in the tables group, slot, index and number.
    bucket: as `capture.CapturablePass` has it. adapted: None where no row has an adapter."""

    layout: PassLayout
    tensors: PassTensors
    states: StateTensors | None
    appended: Tensor
    bucket: Bucket | None
    adapted: AdapterRows | None


def mirrored(
    capacity: Capacity,
    padding_block: int,
    states: DeviceStates | None,
    device: torch.device,
    upload: Upload,
    buckets: Buckets = NO_BUCKETS,
) -> InputBatch:
    """Return an input batch with a mirror on the device. padding_block: the block to which padding writes its keys and
    values; it is never read. states: of a model with recurrent layers, where buckets are of rows alone. buckets: sizes
    to which passes are padded.

    Raises:
        ValueError: For more tokens than whole numbers of 32 bits count.
    """
    slots, length = capacity.max_rows + 1, capacity.max_model_len + 1
    if slots * length >= 2**31:
        raise ValueError(
            f"{slots} rows of {length:,} tokens are more than a device's tables of 2^31 numbers hold; lower "
            "--max-num-seqs or --max-model-len"
        )
    batch = InputBatch(capacity, padding_block, states)
    batch.attach(DeviceBatch(batch, states, capacity.adapter_slots, device, upload, buckets))
    return batch


class DeviceBatch:
    def __init__(
        self,
        batch: InputBatch,
        states: DeviceStates | None,
        adapter_slots: int,
        device: torch.device,
        upload: Upload,
        buckets: Buckets,
    ) -> None:
        """Mirror a batch, without a reference to it, so that both end with its owner's."""
        self.states, self._upload, self._buckets = states, upload, buckets
        self.tokens = torch.zeros(batch.tokens.shape, dtype=torch.int32, device=device)
        self.block_tables = torch.zeros(batch.block_tables.shape, dtype=torch.int32, device=device)
        self.block_tables[:, batch.padding_slot] = batch.padding_block
        self.adapters = AdapterTables(batch.adapters, adapter_slots, device, upload)
        self._numbers = torch.zeros(batch.numbers.shape, dtype=torch.int32, device=device)
        self._seeds = torch.zeros((2, len(batch.tokens)), dtype=torch.int64, device=device)
        self._settings = DrawSettings(
            **dict(zip(FLOATS, self._numbers[: len(FLOATS)].view(torch.float32), strict=True)),
            **dict(zip(INTEGERS[:2], self._numbers[len(FLOATS) :], strict=False)),
            seed=self._seeds[0],
            sample_index=self._seeds[1],
        )

    # -- as a pass begins -------------------------------------------------------------------------------------------
    def begin(self, batch: InputBatch, chunks: Sequence[Chunk], num_blocks: int) -> PassStart:
        """Begin a pass over the chunks: send what changed in the batch, and the pass's inputs. num_blocks: of the
        device.

        Raises:
            ValueError: For positions or blocks that cannot be; then nothing has been written on the device.
        """
        changes = batch.changes
        bucket = self._buckets.of(chunks)
        chunks = filled_up(chunks, bucket, batch.padding_slot)
        batch.put_drafts(chunks)
        layout = laid_out(chunks)
        blocks = np.array(changes.blocks, np.int32).reshape(-1, 4)
        _check(batch, chunks, layout, blocks, num_blocks)
        moves = None if self.states is None else batch.move_states(chunks, layout)
        if changes.discarded:
            self.block_tables[:, changes.discarded] = batch.padding_block
            self.tokens[changes.discarded] = 0
        self.adapters.update(changes.adapters)
        start = self._send(batch, layout, moves, blocks, bucket)
        changes.clear()
        return start

    def _send(
        self,
        batch: InputBatch,
        layout: PassLayout,
        moves: StateMetadata | None,
        blocks: Array,
        bucket: Bucket | None,
    ) -> PassStart:
        """Send all inputs in one copy. Tokens, chunks and states of passes of one bucket lie at the same addresses;
        behind them, if any row has an adapter, which row has which."""
        changes, of_states = batch.changes, list[Array]()
        if moves is not None and self.states is not None:
            spare = np.zeros(0 if bucket is None else bucket.tokens - len(moves.slots), np.int32)  # so that none moves
            at = moves.slots + np.int32(self.states.first_snapshot)
            of_states = [moves.snapshot_start, *(np.concatenate([one, spare]) for one in (moves.positions, at))]
        token_ids = np.zeros(len(layout.positions), np.int32)  # looked up on the device
        of_pass = [token_ids, layout.positions, layout.chunk_of, layout.rows, layout.query_start, layout.context_len]
        slots_of = self.adapters.slots_of(batch.adapter_slots[layout.row_of])
        of_adapters = () if slots_of is None else tiled(slots_of, self.adapters.num_slots)
        of_start = [*of_pass, *of_states, *of_adapters]
        changed = [*_token_writes(batch, changes)]
        if changes.started:
            of = changes.started
            seeds = np.stack([batch.seed[of].view(np.int64), batch.sample_index[of].astype(np.int64)])
            changed += [np.array(of, np.int32), batch.numbers[:, of].ravel(), bits(seeds)]
        sent = iter(self._upload.send([*of_start, blocks.ravel(), *changed], len(of_start)))
        tensors = PassTensors(
            token_ids=next(sent),
            positions=next(sent),
            chunk_of=next(sent),
            rows=next(sent),
            query_start=next(sent),
            context_len=next(sent),
            block_tables=self.block_tables,
            block_size=batch.block_size,
            longest_chunk=layout.longest_chunk if bucket is None else bucket.longest_chunk,
            longest_context=layout.longest_context if bucket is None else batch.max_len,
        )
        states = StateTensors(next(sent), next(sent), next(sent)) if of_states else None
        adapted = AdapterRows(next(sent), next(sent)) if of_adapters else None
        start = PassStart(layout, tensors, states, next(sent).view(-1, 4), bucket, adapted)
        where, tokens = next(sent), next(sent)
        if len(where):
            self.tokens.view(-1).index_copy_(0, where.long(), tokens)
        if changes.started:
            slots, numbers, of_seeds = sent
            self._numbers.index_copy_(1, slots.long(), numbers.view(-1, len(slots)))
            self._seeds.index_copy_(1, slots.long(), of_seeds.view(torch.int64).view(-1, len(slots)))
        return start

    # -- what is drawn ----------------------------------------------------------------------------------------------
    def draws(
        self, batch: InputBatch, slots: Array, positions: Array, masks: Sequence[Array | None] | None = None
    ) -> Draws:
        """Gather what is needed for draws behind positions int32[S] of slots int32[S]; what stands up to there counts
        as known. masks: bits of what may be drawn, beside what the settings allow."""
        prompt_lengths, top_k, top_logprobs = batch.integers.take(slots, axis=1)
        temperature, top_p, min_p = batch.floats[:3].take(slots, axis=1)
        num_tokens = batch.num_tokens(positions, prompt_lengths)
        arrays, bias, bad, allowed = [slots, num_tokens], None, None, None
        is_limited = masks is not None or (bool(batch.biases) and not batch.biases.keys().isdisjoint(slots.tolist()))
        if is_limited:
            counts = num_tokens - prompt_lengths
            limits = batch.limits(slots, counts, masks, knows_tokens=False)
            arrays += [limits.bias_offsets, limits.bias_ids, bits(limits.bias_values)]
            arrays += [*_bad_arrays(batch, slots, counts), _allowed(limits.allowed, batch.vocab_size)]
        sent = self._upload.send(arrays)
        if is_limited:
            bias = Bias(sent[2], sent[3], sent[4].view(torch.float32)) if len(sent[3]) else None
            bad = BadSequences(*sent[5:8]) if len(sent[7]) else None
            allowed = sent[8].view(len(slots), -1) if len(sent[8]) else None
        drawn = temperature > 0
        wanted = batch.want_logprobs[slots]
        return Draws(
            settings=self._settings,
            rows=sent[0],
            num_tokens=sent[1],
            tokens=self.tokens,
            needs_history=bool(batch.histories) and not batch.histories.isdisjoint(slots.tolist()),
            filters=bool((drawn & ((top_k > 0) | (top_p < 1) | (min_p > 0))).any()),
            greedy=not drawn.any(),
            longest_history=int(num_tokens.max(initial=0)),
            bias=bias,
            bad=bad,
            allowed=allowed,
            want_logprobs=bool(wanted.any()),
            top_logprobs=min(int(np.where(wanted, top_logprobs, 0).max(initial=0)), batch.vocab_size),
        )

    def keep(self, draws: Draws, token_ids: Tensor) -> None:
        """Keep drawn tokens behind the tokens that they were drawn from."""
        self.tokens[draws.rows.long(), draws.num_tokens.long()] = token_ids

    def following(self, slots: Array, positions: Array) -> Tensor:
        """Return the tokens behind positions int32[S] of slots int32[S]: int32[S]."""
        (at,) = self._upload.send([slots * np.int32(self.tokens.shape[1]) + positions + np.int32(1)])
        return self.tokens.view(-1).index_select(0, at)


def _check(batch: InputBatch, chunks: Sequence[Chunk], layout: PassLayout, blocks: Array, num_blocks: int) -> None:
    """Check indices: one that is out of bounds would end the device's context, and all requests with it."""
    if len(blocks) and not 0 <= blocks[:, 3].min() <= blocks[:, 3].max() < num_blocks:
        worst = blocks[:, 3].min() if blocks[:, 3].min() < 0 else blocks[:, 3].max()
        raise ValueError(f"block {worst} is not in the KV cache, which has {num_blocks:,}")
    ends = layout.context_len + layout.lengths
    if len(chunks) and (layout.context_len.min() < 0 or ends.max() > batch.max_len):
        raise ValueError(
            f"a chunk computes positions {layout.context_len.min()} to {ends.max()}, but those of a sequence are 0 "
            f"to {batch.max_len:,}"
        )
    needed = -(-ends // batch.block_size)
    for index in np.flatnonzero(needed > batch.num_blocks[:, layout.rows].min(axis=0)).tolist():
        if (slot := chunks[index].row) not in batch.discarded:
            raise ValueError(
                f"row {slot} computes up to position {ends[index]:,}, which needs {needed[index]} blocks; its table "
                f"has {batch.num_blocks[:, slot].min()}"
            )


def _token_writes(batch: InputBatch, changes: Changes) -> tuple[Array, Array]:
    """Return where in all tokens, as one line, new ones are put, and these."""
    width = batch.tokens.shape[1]
    at = [np.arange(start, end, dtype=np.int32) + slot * width for slot, start, end in changes.tokens]
    tokens = [batch.tokens[slot, start:end] for slot, start, end in changes.tokens]
    return np.concatenate(at or [_NONE]), np.concatenate(tokens or [_NONE])


def _bad_arrays(batch: InputBatch, slots: Array, counts: Array) -> list[Array]:
    """`BadSequences` of S draws behind so many output tokens."""
    rules = zip(map(batch.biases.get, slots.tolist()), counts.tolist(), strict=True)
    found = [[] if rule is None else rule.sequences(count) for rule, count in rules]
    all_of = [one for sequences in found for one in sequences]
    start, offsets = np.zeros(len(slots) + 1, np.int32), np.zeros(len(all_of) + 1, np.int32)
    np.cumsum([len(sequences) for sequences in found], out=start[1:])
    np.cumsum([len(one) for one in all_of], out=offsets[1:])
    return [start, offsets, np.array([token for one in all_of for token in one], np.int32)]


def _allowed(found: Sequence[Array | None], vocab_size: int) -> Array:
    """`Draws.allowed` of S draws, in one line; None: all tokens may be drawn. Empty where all may draw everything."""
    if all(one is None for one in found):
        return _NONE
    words = np.full((len(found), -(-vocab_size // 32)), _ALL, np.int32)
    for line, one in zip(words, found, strict=True):
        if one is not None:
            line[:] = one.view(np.int32)
    return words.ravel()
