"""Scoring: log-probabilities of the tokens that a prompt goes on with, at the positions that a step's chunks name.

Knows chunks, the decoder's last forward pass and the op set; not which positions still want a score (the plan says).
Logits come in slabs, so that a long prompt over a large vocabulary needs no more memory than a decode does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from inflight.core.types.logprobs import TokenLogprob, TopLogprobs
from inflight.core.types.plan import Chunk, Scored
from inflight.execution.decoder import Decoder
from inflight.execution.ops.protocol import Array, OpSet, SampledBatch, ScoredBatch
from inflight.execution.rows import RowStore

UNSOUND = (
    "The model's logits after {position} tokens are not finite (NaN or infinite), so they mean no token; its weights "
    "are damaged, or its numbers overflow on this text: check the checkpoint, or try --dtype float32."
)


class PromptScorer:
    def __init__(self, decoder: Decoder, ops: OpSet, rows: RowStore):
        self._decoder = decoder
        self._ops = ops
        self._rows = rows

    def score(self, chunks: Sequence[Chunk], offsets: Array) -> list[Scored]:
        """One entry per chunk that wants scores. `chunks` are those of the decoder's last forward pass, and chunk c is
        tokens offsets[c] … of it, int32[C + 1]."""
        wanting = [(chunk, int(offset)) for chunk, offset in zip(chunks, offsets, strict=False) if chunk.score]
        if not wanting:
            return []
        places = np.concatenate([np.arange(c.score.start, c.score.stop) + (at - c.start) for c, at in wanting])
        token_ids, tops = self._rows.scoring([chunk for chunk, _ in wanting])
        entries: list[TokenLogprob] = []
        for first in range(0, len(places), self._decoder.max_logit_rows):
            slab = slice(first, first + self._decoder.max_logit_rows)
            told = self._ops.score(self._decoder.logits(places[slab]), token_ids[slab], tops[slab])
            for row, (token_id, top) in enumerate(zip(token_ids[slab].tolist(), tops[slab].tolist(), strict=True)):
                entries.append(token_logprob(told, row, token_id, top))
        following = iter(entries)
        return [_scored(chunk, tuple(next(following) for _ in chunk.score)) for chunk, _ in wanting]


def _scored(chunk: Chunk, logprobs: tuple[TokenLogprob, ...]) -> Scored:
    unsound = next((n for n, entry in enumerate(logprobs, chunk.score.start + 1) if math.isnan(entry.logprob)), None)
    if unsound is None:
        return Scored(chunk.sequence_id, chunk.score.start + 1, logprobs)
    return Scored(chunk.sequence_id, chunk.score.start + 1, (), UNSOUND.format(position=unsound))


def token_logprob(told: SampledBatch | ScoredBatch, row: int, token_id: int, top: int) -> TokenLogprob:
    """What an op told of a row, with the first `top` alternatives."""
    ids, values = told.top_ids[row, :top], told.top_logprobs[row, :top]
    alternatives = TopLogprobs.of_bytes(ids.tobytes(), values.tobytes()) if top else ()
    return TokenLogprob(token_id, float(told.logprobs[row]), alternatives)


def joined(pieces: Iterable[Scored]) -> tuple[Scored, ...]:
    """One entry per sequence: a chunk that was computed in several passes was scored in several, in order."""
    whole: dict[int, Scored] = {}
    for piece in pieces:
        before = whole.get(piece.sequence_id)
        whole[piece.sequence_id] = (
            piece
            if before is None
            else replace(before, logprobs=before.logprobs + piece.logprobs, error=before.error or piece.error)
        )
    return tuple(whole.values())
