"""Turns a pass's arrays into the plan's types: tokens with log-probabilities, drafts that were right, vectors, and
error messages for rows without a result.

Knows core's results and the arrays that a backend yields; not how it computed them, nor slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from inflight.core.types.plan import Chunk, Pooled, Sampled, Scored
from inflight.core.types.sampling import PoolingParams, TokenLogprob, TopLogprobs
from inflight.execution.backends.protocol import Array, SampledBatch, SamplingBatch, ScoredBatch

ALL_BANNED = (
    "After {position} tokens, grammar, allowed_token_ids, bad_words and min_tokens leave nothing to draw; allow more "
    "tokens."
)
UNSOUND = (
    "The model's logits after {position} tokens are not finite (NaN or infinite), so they mean no token; its weights "
    "are damaged, or its numbers overflow on this text: check the checkpoint, or try --dtype float32."
)
UNSOUND_VECTOR = (
    "The model's hidden state after {position} tokens is not finite (NaN or infinite), so that it is no vector; its "
    "weights are damaged, or its numbers overflow on this text: check the checkpoint, or try --dtype float32."
)


def token_logprob(scores: SampledBatch | ScoredBatch, row: int, token_id: int, top: int) -> TokenLogprob:
    """Return the log-probability of a row's token, with the first `top` alternatives."""
    ids, values = scores.top_ids[row, :top], scores.top_logprobs[row, :top]
    alternatives = TopLogprobs.of_bytes(ids.tobytes(), values.tobytes()) if top else ()
    return TokenLogprob(token_id, float(scores.logprobs[row]), alternatives)


def verified(drafts: Sequence[int], draws: Sequence[Sampled]) -> Sampled:
    """Return the accepted draws of a chunk, one before each draft and one behind them: up to the first that differs
    from its draft. A draw with nothing to draw is an error only if it is the first; a later one is drawn again."""
    right = 0
    while right < len(drafts) and draws[right].token_ids == (drafts[right],):
        right += 1
    kept = draws[: right + 1]
    if kept[-1].error is not None:
        if not right:
            return kept[0]
        kept = kept[:-1]
    tokens = tuple(one.token_ids[0] for one in kept)
    logprobs = None if kept[0].logprobs is None else tuple(chain.from_iterable(one.logprobs or () for one in kept))
    return Sampled(kept[0].sequence_id, tokens, logprobs)


class ChunkDraws:
    """Collects the draws of a pass, chunk by chunk, in order: `sampled`."""

    def __init__(self) -> None:
        self.sampled: list[Sampled] = []
        self._draws: list[Sampled] = []  # of the chunk that is being drawn for

    def add(self, chunk: Chunk, drawn: Sampled) -> None:
        """Add a chunk's next draw."""
        if not chunk.draft_token_ids:
            self.sampled.append(drawn)
            return
        self._draws.append(drawn)
        if len(self._draws) == chunk.sample:
            self.sampled.append(verified(chunk.draft_token_ids, self._draws))
            self._draws = []


def unsound(sequence_id: int, position: int, was_banned: bool) -> Sampled:
    """was_banned: nothing was left to draw."""
    sentence = (ALL_BANNED if was_banned else UNSOUND).format(position=position)
    return Sampled(sequence_id, (), error=sentence, by_request=was_banned)


def was_banned(batch: SamplingBatch, row: int, logit: float) -> bool:
    """Whether a drawn token's logit, which is not finite, is what bans made it."""
    added = batch.bias_values[batch.bias_offsets[row] : batch.bias_offsets[row + 1]]
    return logit == -np.inf and (batch.allowed[row] is not None or bool(np.isneginf(added).any()))


def scored(chunk: Chunk, position: int, entry: TokenLogprob) -> Scored:
    """entry: of the token behind that at `position`."""
    error = UNSOUND.format(position=position + 1) if math.isnan(entry.logprob) else None
    return Scored(chunk.sequence_id, position + 1, (entry,), error)


def pooled(chunks: Sequence[Chunk], vectors: Array, wanted: Sequence[PoolingParams]) -> Iterator[Pooled]:
    """Yield the vectors float32[S, E] of as many chunks, by their pooling settings."""
    for chunk, vector, params in zip(chunks, vectors, wanted, strict=True):
        if np.isfinite(vector).all():
            yield Pooled(chunk.sequence_id, tuple(_as_wanted(vector, params).tolist()))
        else:
            yield Pooled(chunk.sequence_id, (), UNSOUND_VECTOR.format(position=chunk.start + chunk.length))


def _as_wanted(vector: Array, params: PoolingParams) -> Array:
    found = vector[: params.dimensions].astype(np.float64)
    if params.normalize:
        found = found / (np.sqrt(np.square(found).sum()) or 1.0)
    if params.activation == "sigmoid":
        found = np.exp(-np.logaddexp(0, -found))
    elif params.activation == "softmax":
        found = np.exp(found - np.logaddexp.reduce(found))
    return found.astype(np.float32)
