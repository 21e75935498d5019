"""The draft model: a smaller model of the same vocabulary, which drafts inside of the model's steps.

Its keys and values lie beside the model's (`draft_kv`). Drafts take one pass that catches up with what the model has
computed and yields each sequence's first draft, then one for each further draft. Prompts are computed beside the model
while drafts are asked for at all; other missing positions when a sequence is drafted for.

A draft is drawn as the model will draw: from the same slot, so with the request's settings and with the random words of
that position. Where both models agree, they therefore draw the same token, at every temperature. Passes are submitted
one after the other, and waited for once: a drawn token stands in the slot, where the next pass finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from inflight.core.types.plan import BatchPlan, Chunk
from inflight.execution.backends.protocol import Device, PendingCopy, PendingPass
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.drafters.draft_kv import DraftKV
from inflight.execution.drafters.step_drafting import drawn
from inflight.execution.graphs import CapturesAhead
from inflight.execution.passes import PassDecoder, passes, sample

PATIENCE = 1024  # steps without a request for drafts, before prompts are no longer computed


class DraftModel:
    name = "draft-model"

    def __init__(self, decoder: PassDecoder, backend: Device, kv: DraftKV) -> None:
        """Draft with a decoder of the draft model, made for the model's backend."""
        self._decoder, self._backend, self._kv = decoder, backend, kv
        self._idle = 0  # steps since a draft was last asked for

    def capture_ahead(self, batch: InputBatch, seconds: float) -> None:
        if isinstance(self._decoder, CapturesAhead):
            self._decoder.capture_ahead(lambda lengths: self._pad(lengths, batch), seconds)

    def leave(self, plan: BatchPlan, batch: InputBatch) -> None:
        """Do nothing: what it has not computed of a sequence, it does not need any more."""

    def begin(self, plan: BatchPlan, batch: InputBatch) -> None:
        self._kv.begin(plan, batch)
        self._idle += 1

    def draft(self, chunks: Sequence[Chunk], batch: InputBatch) -> list[tuple[int, ...]]:
        self._idle = 0
        behind = self._behind(chunks, batch)
        drafting = [one for one in behind if one.sample]
        pending = self._submit(behind, batch)
        for drafted in range(1, max((chunks[one.sequence_id].num_drafts for one in drafting), default=0)):
            drafting = [one for one in drafting if chunks[one.sequence_id].num_drafts > drafted]
            pending += self._submit(
                [structs.replace(one, start=_end(one) + drafted - 1, length=1) for one in drafting], batch
            )
        return drawn(pending, len(chunks))

    def computed(self, forward: Any, chunks: Sequence[Chunk], batch: InputBatch) -> None:
        """Do nothing: a draft model reads no hidden states of the model."""

    def follow(self, chunks: Sequence[Chunk], batch: InputBatch) -> list[PendingPass]:
        """Prompts, as far as nothing before them is lacking."""
        if self._idle > PATIENCE:
            return []
        return self._submit([_bare(one) for one in chunks if _is_prompt(one) and self._is_complete(one, batch)], batch)

    def copy(self, sources: Sequence[int], destinations: Sequence[int]) -> PendingCopy | None:
        return self._kv.copy(sources, destinations)

    def _pad(self, lengths: Sequence[int], batch: InputBatch) -> None:
        chunks = [Chunk(-1, batch.padding_slot, 0, length, (), 0) for length in lengths]
        forward = self._backend.prepare(batch, self._kv.cache, chunks)
        self._decoder.forward(forward)
        forward.finish().result()

    def _behind(self, chunks: Sequence[Chunk], batch: InputBatch) -> list[Chunk]:
        """Return what the draft model has not computed of each sequence, up to its last known token, numbered as
        `chunks`; together as much as one pass takes, beginning with those that lack least. The others catch up over
        several steps, and are drafted for then."""
        lacking = []
        for number, chunk in enumerate(chunks):
            known = _end(chunk) - chunk.num_drafts
            start = self._kv.num_computed(batch, chunk.row, known - 1)
            lacking.append(Chunk(number, chunk.row, start, known - start, (), 1))
        room, found = self._decoder.max_tokens, []
        for one in sorted(lacking, key=lambda one: one.length):
            if room:
                found.append(one if one.length <= room else structs.replace(one, length=room, sample=0))
                room -= found[-1].length
        return found

    def _is_complete(self, chunk: Chunk, batch: InputBatch) -> bool:
        return self._kv.num_computed(batch, chunk.row, chunk.start) == chunk.start

    def _submit(self, chunks: Sequence[Chunk], batch: InputBatch) -> list[PendingPass]:
        pending = []
        for piece in passes(chunks, self._decoder.max_tokens):
            forward = self._backend.prepare(batch, self._kv.cache, piece)
            self._decoder.forward(forward)
            sample(self._decoder, forward, piece)
            pending.append(forward.finish())
        for one in chunks:
            self._kv.note_computed(batch, one.row, _end(one))
        return pending


def _end(chunk: Chunk) -> int:
    return chunk.start + chunk.length


def _is_prompt(chunk: Chunk) -> bool:
    """Several known tokens, not padding."""
    return chunk.sequence_id >= 0 and chunk.length - len(chunk.draft_token_ids) > 1


def _bare(chunk: Chunk) -> Chunk:
    """Return the same tokens, without blocks or samples."""
    return Chunk(chunk.sequence_id, chunk.row, chunk.start, chunk.length, (), 0)
