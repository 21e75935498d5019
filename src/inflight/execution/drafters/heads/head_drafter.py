"""Drafting with a head, inside of a step.

A head's keys and values lie beside the model's, in the same blocks: at position p what it made of the hidden state
there and of the token behind it. So the last position of a shared block is of the sequence that computed it first, and
whose next token may have been another; that costs a draft now and then. Drafts are drawn as the model will draw: with
the request's settings, and the random words of that position.

The model's hidden states come once. Those of prompts are read at once, those of decodes when drafts are wanted or when
they become many (`recent_hidden`), and what is left when a row is freed, then; where no draft has been asked for in
a long time, none are. A sequence that comes back from the host may lack a few, too. Nothing replaces them, and that
costs drafts alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from msgspec import structs

from inflight.core.types.plan import BatchPlan, Capacity, Chunk
from inflight.execution.backends.protocol import Backend, KVCache, PendingCopy, PendingPass
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.drafters.heads.head_decoder import HeadDecoder
from inflight.execution.drafters.heads.recent_hidden import KEPT, RecentHidden
from inflight.execution.drafters.step_drafting import drawn
from inflight.execution.graphs import CapturesAhead
from inflight.execution.passes import LogitDecoder, passes, sample

PATIENCE = 1024  # steps without a request for drafts, before hidden states are no longer read


class _Run(NamedTuple):
    """Positions that the head computes of a row, and the index of the hidden state of each."""

    chunk: Chunk
    indices: list[int]


class HeadPasses(LogitDecoder, Protocol):
    """A head's layers, behind the hidden states that its decoder has taken, and its logits."""

    def forward(self, batch: Any) -> None: ...


class HeadDrafter:
    def __init__(
        self,
        decoder: HeadDecoder,
        passes: HeadPasses,
        recent: RecentHidden,
        backend: Backend,
        cache: KVCache,
        capacity: Capacity,
    ) -> None:
        """Draft with a head. passes: the decoder's own, or around it. recent: hidden states, of the capacity's rows and
        one of padding. cache: of the head's layer, with the model's number of blocks."""
        self.name = decoder.head.name
        self._decoder, self._passes, self._recent = decoder, passes, recent
        self._backend, self._cache = backend, cache
        self._first = [0] * capacity.max_rows  # position of each row from which on hidden states were kept
        self._read = [0] * capacity.max_rows  # and up to which the head has read them
        self._certain = [0] * capacity.max_rows  # up to which the token behind a position is known
        self._idle = 0  # steps since a draft was last asked for

    def capture_ahead(self, batch: InputBatch, seconds: float) -> None:
        if isinstance(self._passes, CapturesAhead):
            self._passes.capture_ahead(lambda lengths: self._pad(lengths, batch), seconds)

    # -- as a step asks ---------------------------------------------------------------------------------------------
    def leave(self, plan: BatchPlan, batch: InputBatch) -> None:
        self._idle += 1
        if not plan.transfers:  # which may have filled the blocks of those that go
            self._catch_up([(row, self._certain[row]) for row in plan.freed_rows], batch)
        for row in plan.freed_rows:
            self._certain[row] = 0

    def begin(self, plan: BatchPlan, batch: InputBatch) -> None:
        new = {one.row for one in plan.new_requests}
        for chunk in plan.chunks:
            if chunk.row in new:
                self._first[chunk.row] = self._read[chunk.row] = self._certain[chunk.row] = chunk.start

    def draft(self, chunks: Sequence[Chunk], batch: InputBatch) -> list[tuple[int, ...]]:
        self._idle = 0
        runs = []
        for number, chunk in enumerate(chunks):
            end = chunk.start + chunk.length - chunk.num_drafts - 1
            start = max(min(self._read[chunk.row], end - 1), self._first[chunk.row])
            if start < end:
                runs.append(self._run(number, chunk.row, start, end, sample=1))
                self._read[chunk.row] = end
        pending: list[PendingPass] = []
        for piece in self._pieces(runs):
            pending += self._drafted(piece, [chunk.num_drafts for chunk in chunks], batch)
        return drawn(pending, len(chunks))

    def computed(self, forward: Any, chunks: Sequence[Chunk], batch: InputBatch) -> None:
        runs, offset = list[_Run](), 0
        for chunk in chunks:
            row, end = chunk.row, chunk.start + chunk.length
            if row != batch.padding_slot:
                certain = end - 1 - len(chunk.draft_token_ids)
                if end - self._read[row] > KEPT and certain > self._read[row] and self._idle <= PATIENCE:
                    if not runs:
                        whole = self._recent.keep_pass(forward.num_tokens)
                    runs.append(self._run_of_pass(chunk, certain, whole + offset))
                    self._read[row] = certain
                self._certain[row] = certain
                self._first[row] = max(self._first[row], end - KEPT)
            offset += chunk.length
        for piece in self._pieces(runs):
            self._submit(piece, batch)
        self._recent.keep(chunks)

    def follow(self, chunks: Sequence[Chunk], batch: InputBatch) -> list[PendingPass]:
        """Return no passes: the head reads hidden states while they are there."""
        return []

    def copy(self, sources: Sequence[int], destinations: Sequence[int]) -> PendingCopy | None:
        return self._backend.copy_blocks(self._cache, sources, destinations)

    # -- inside -----------------------------------------------------------------------------------------------------
    def _catch_up(self, ends: Sequence[tuple[int, int]], batch: InputBatch) -> None:
        """Compute what the head has not read yet. ends: (row, position up to which it reads)."""
        if self._idle > PATIENCE:
            return
        runs = []
        for row, end in ends:
            start = max(self._read[row], self._first[row])
            if start < end:
                runs.append(self._run(0, row, start, end))
        for piece in self._pieces(runs):
            self._submit(piece, batch)

    def _run(self, number: int, row: int, start: int, end: int, sample: int = 0) -> _Run:
        """Over kept hidden states."""
        indices = self._recent.indices(row, np.arange(start, end, dtype=np.int32))
        return _Run(Chunk(number, row, start, end - start, (), sample), indices.tolist())

    def _run_of_pass(self, chunk: Chunk, end: int, first: int) -> _Run:
        """Over kept ones, and those of the chunk, of which the first lies at index `first`."""
        start = max(self._read[chunk.row], self._first[chunk.row])
        before = np.arange(start, chunk.start, dtype=np.int32)
        behind = range(first + max(start - chunk.start, 0), first + end - chunk.start)
        indices = self._recent.indices(chunk.row, before).tolist() + list(behind)
        return _Run(Chunk(0, chunk.row, start, end - start, (), 0), indices)

    def _pieces(self, runs: Sequence[_Run]) -> list[list[_Run]]:
        """Split runs into pieces that fit a pass."""
        by_row = {one.chunk.row: one for one in runs}
        found = []
        for chunks in passes([one.chunk for one in runs], self._decoder.max_tokens):
            piece = []
            for chunk in chunks:
                whole = by_row[chunk.row]
                first = chunk.start - whole.chunk.start
                piece.append(_Run(chunk, whole.indices[first : first + chunk.length]))
            found.append(piece)
        return found

    def _pad(self, lengths: Sequence[int], batch: InputBatch) -> None:
        runs = [_Run(Chunk(-1, batch.padding_slot, 0, length, (), 0), [0] * length) for length in lengths]
        self._submit(runs, batch).result()

    def _submit(self, runs: Sequence[_Run], batch: InputBatch) -> PendingPass:
        chunks = [one.chunk for one in runs]
        forward = self._backend.prepare(batch.shifted(1), self._cache, chunks)
        self._decoder.take_taps(forward, self._recent.taps, [index for one in runs for index in one.indices])
        self._passes.forward(forward)
        sample(self._passes, forward, chunks)
        return forward.finish()

    def _drafted(self, runs: Sequence[_Run], max_drafts: Sequence[int], batch: InputBatch) -> list[PendingPass]:
        """Submit the passes that draft behind some rows, of each as many tokens as `max_drafts` has at its number."""
        pending = [self._submit(runs, batch)]
        ends = np.cumsum([one.chunk.length for one in runs]).tolist()
        going = [(one.chunk, end - 1) for one, end in zip(runs, ends, strict=True) if one.chunk.sample]
        for drafted in range(1, max((max_drafts[chunk.sequence_id] for chunk, _ in going), default=0)):
            going = [one for one in going if max_drafts[one[0].sequence_id] > drafted]
            chunks = [structs.replace(chunk, start=chunk.start + chunk.length, length=1) for chunk, _ in going]
            forward = self._backend.prepare(batch.shifted(1), self._cache, chunks)
            self._decoder.take_own(forward, [index for _, index in going])
            self._passes.forward(forward)
            sample(self._passes, forward, chunks)
            pending.append(forward.finish())
            going = list(zip(chunks, range(len(chunks)), strict=True))
        return pending
