"""Results of a pass: arrays of draws, scores and vectors become the plan's types, with a sentence for each row that has
no result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np

from inflight.core.types.plan import Chunk, Pooled, Sampled, Scored
from inflight.core.types.sampling import PoolingParams, TokenLogprob, TopLogprobs
from inflight.execution.backends.protocol import Array, PassResult, SampledBatch, ScoredBatch

ALL_BANNED = (
    "After {position} tokens, grammar, allowed_token_ids, bad_words and min_tokens leave nothing to draw; allow more "
    "tokens."
)
NOT_FINITE = (
    "The model's logits after {position} tokens are not finite (NaN or infinite), so they mean no token; its weights "
    "are damaged, or its numbers overflow on this text: check the checkpoint, or try --dtype float32."
)
VECTOR_NOT_FINITE = (
    "The model's hidden state after {position} tokens is not finite (NaN or infinite), so that it is no vector; its "
    "weights are damaged, or its numbers overflow on this text: check the checkpoint, or try --dtype float32."
)


class DrawnRows(NamedTuple):
    """S draws of a pass, in the order of its chunks; arrays may be filled later, until the pass is done.

    Attributes:
        of: int32[S], indices of chunks.
        positions: int32[S], behind which they were drawn.
        want_logprobs: bool[S].
        top_logprobs: int32[S], alternatives wanted.
        token_ids: int32[S].
        is_finite: bool[S], of the drawn tokens' logits.
        was_banned: Whether a row's logit is not finite because every token was banned.
        scores: Log-probabilities; None where no row wants any.
    """

    of: Array
    positions: Array
    want_logprobs: Array
    top_logprobs: Array
    token_ids: Array
    is_finite: Array
    was_banned: Callable[[int], bool]
    scores: SampledBatch | ScoredBatch | None


class ScoredRows(NamedTuple):
    """Log-probabilities of token_ids int32[S] behind positions int32[S] of the chunks `of`."""

    of: Array
    positions: Array
    top_logprobs: Array
    token_ids: Array
    scores: ScoredBatch


class PooledRows(NamedTuple):
    """Vectors float32[S, E] of the chunks `of`, and how they are wanted."""

    of: Array
    wanted: list[PoolingParams]
    vectors: Array


@dataclass(slots=True)
class PassOutcome:
    """Filled while a pass is computed; its own result once it is finished."""

    chunks: Sequence[Chunk]
    drawn: list[DrawnRows] = field(default_factory=list)
    scored: list[ScoredRows] = field(default_factory=list)
    pooled: list[PooledRows] = field(default_factory=list)
    finished: float = 0.0
    states: Array | None = None

    def finish(self) -> PassOutcome:
        """Note that everything is computed."""
        self.finished = time.perf_counter()
        return self

    def result(self) -> PassResult:
        draws = ChunkDraws()
        for drawn in self.drawn:
            self._draw(drawn, draws)
        scored = [one for rows in self.scored for one in self._scored(rows)]
        pooled = [one for rows in self.pooled for one in self._pooled(rows)]
        return PassResult(draws.sampled, scored, pooled, self.finished, self.states)

    def _draw(self, rows: DrawnRows, draws: ChunkDraws) -> None:
        columns = (rows.of, rows.token_ids, rows.is_finite, rows.want_logprobs)
        for row, (at, token, is_finite, wants) in enumerate(zip(*map(np.ndarray.tolist, columns), strict=True)):
            chunk = self.chunks[at]
            if not is_finite:
                banned = rows.was_banned(row)
                sentence = (ALL_BANNED if banned else NOT_FINITE).format(position=int(rows.positions[row]) + 1)
                one = Sampled(chunk.sequence_id, (), error=sentence, by_request=banned)
            elif wants and rows.scores is not None:
                entry = _token_logprob(rows.scores, row, token, int(rows.top_logprobs[row]))
                one = Sampled(chunk.sequence_id, (token,), (entry,))
            else:
                one = Sampled(chunk.sequence_id, (token,))
            draws.add(chunk, one)

    def _scored(self, rows: ScoredRows) -> Iterator[Scored]:
        columns = (rows.of, rows.positions, rows.token_ids, rows.top_logprobs)
        for row, (at, position, token, top) in enumerate(zip(*map(np.ndarray.tolist, columns), strict=True)):
            entry = _token_logprob(rows.scores, row, token, top)
            error = NOT_FINITE.format(position=position + 1) if math.isnan(entry.logprob) else None
            yield Scored(self.chunks[at].sequence_id, position + 1, (entry,), error)

    def _pooled(self, rows: PooledRows) -> Iterator[Pooled]:
        for at, vector, params in zip(rows.of.tolist(), rows.vectors, rows.wanted, strict=True):
            chunk = self.chunks[at]
            if np.isfinite(vector).all():
                yield Pooled(chunk.sequence_id, tuple(_as_wanted(vector, params).tolist()))
            else:
                sentence = VECTOR_NOT_FINITE.format(position=chunk.start + chunk.length)
                yield Pooled(chunk.sequence_id, (), sentence)


class ChunkDraws:
    """Collects the draws of a pass, chunk by chunk, in order: `sampled`."""

    def __init__(self) -> None:
        self.sampled: list[Sampled] = []
        self._draws: list[Sampled] = []  # of the chunk that is being drawn for

    def add(self, chunk: Chunk, drawn: Sampled) -> None:
        if not chunk.draft_token_ids:
            self.sampled.append(drawn)
            return
        self._draws.append(drawn)
        if len(self._draws) == chunk.sample:
            self.sampled.append(_verified(chunk.draft_token_ids, self._draws))
            self._draws = []


def _verified(drafts: Sequence[int], draws: Sequence[Sampled]) -> Sampled:
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


def _token_logprob(scores: SampledBatch | ScoredBatch, row: int, token_id: int, top: int) -> TokenLogprob:
    """Return the log-probability of a row's token, with the first `top` alternatives."""
    ids, values = scores.top_ids[row, :top], scores.top_logprobs[row, :top]
    alternatives = TopLogprobs.of_bytes(ids.tobytes(), values.tobytes()) if top else ()
    return TokenLogprob(token_id, float(scores.logprobs[row]), alternatives)


def _as_wanted(vector: Array, params: PoolingParams) -> Array:
    found = vector[: params.dimensions].astype(np.float64)
    if params.normalize:
        found = found / (np.sqrt(np.square(found).sum()) or 1.0)
    if params.activation == "sigmoid":
        found = np.exp(-np.logaddexp(0, -found))
    elif params.activation == "softmax":
        found = np.exp(found - np.logaddexp.reduce(found))
    return found.astype(np.float32)
