"""Results of a pass: tensors on their way to the host, then the plan's types.

Knows pinned memory, events and the arrays of draws, scores and vectors; not how they were computed. `result` waits for
the pass's own event alone, while the device may be at the next pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from inflight.core.types.plan import Chunk, Pooled, Sampled, Scored
from inflight.core.types.sampling import PoolingParams
from inflight.execution.backends import results
from inflight.execution.backends.protocol import Array, PassResult, ScoredBatch
from inflight.execution.backends.results import ChunkDraws
from inflight.execution.backends.torch.sampling_tensors import Drawn, Scores


class DrawnRows(NamedTuple):
    """Draws of a pass: S rows of the chunks `of`, behind `positions`."""

    of: Array  # int32[S]
    positions: Array  # int32[S]
    want_logprobs: Array  # bool[S]
    top_logprobs: Array  # int32[S]
    drawn: Drawn  # on the host


class ScoredRows(NamedTuple):
    of: Array  # int32[S]
    positions: Array  # int32[S]
    top_logprobs: Array  # int32[S]
    token_ids: Tensor  # int32[S]
    scores: Scores


class PooledRows(NamedTuple):
    of: Array  # int32[S]
    wanted: list[PoolingParams]
    vectors: Tensor  # float32[S, E]


@dataclass(slots=True)
class PassOutcome:
    """Filled while the pass is launched; its own result once it is finished."""

    chunks: Sequence[Chunk]
    device: torch.device
    drawn: list[DrawnRows] = field(default_factory=list)
    scored: list[ScoredRows] = field(default_factory=list)
    pooled: list[PooledRows] = field(default_factory=list)
    _event: torch.cuda.Event | None = None
    _finished: float = 0.0

    def finish(self) -> PassOutcome:
        """Everything is launched."""
        if self.device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(self.device))
        else:
            self._finished = time.perf_counter()
        return self

    def result(self) -> PassResult:
        if self._event is not None:
            self._event.synchronize()
        done = self._finished or time.perf_counter()
        sampled = ChunkDraws()
        for drawn in self.drawn:
            _draw(self.chunks, drawn, sampled)
        scored = [one for rows in self.scored for one in _scored(self.chunks, rows)]
        return PassResult(sampled.sampled, scored, [one for rows in self.pooled for one in self._pooled(rows)], done)

    def _pooled(self, rows: PooledRows) -> Iterator[Pooled]:
        return results.pooled([self.chunks[at] for at in rows.of.tolist()], rows.vectors.numpy(), rows.wanted)


def fetched(values: Tensor) -> Tensor:
    """On its way to the host: to be read when an event behind it has passed."""
    if values.device.type == "cpu":
        return values
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return host.copy_(values, non_blocking=True)


def fetched_draws(drawn: Drawn) -> Drawn:
    return Drawn(*(None if one is None else fetched(one) for one in drawn))  # type: ignore[arg-type]


def _draw(chunks: Sequence[Chunk], rows: DrawnRows, into: ChunkDraws) -> None:
    drawn = rows.drawn
    scores = None if drawn.logprobs is None else _host_scores(drawn.logprobs, drawn.top_ids, drawn.top_logprobs)
    all_of = zip(
        rows.of.tolist(),
        rows.positions.tolist(),
        drawn.token_ids.tolist(),
        drawn.is_sound.tolist(),
        rows.want_logprobs.tolist(),
        strict=True,
    )
    for row, (at, position, token, is_sound, wants) in enumerate(all_of):
        chunk = chunks[at]
        if not is_sound:
            one = results.unsound(chunk.sequence_id, position + 1, bool(drawn.was_banned[row]))
        elif wants and scores is not None:
            entry = results.token_logprob(scores, row, token, int(rows.top_logprobs[row]))
            one = Sampled(chunk.sequence_id, (token,), (entry,))
        else:
            one = Sampled(chunk.sequence_id, (token,))
        into.add(chunk, one)


def _scored(chunks: Sequence[Chunk], rows: ScoredRows) -> Iterator[Scored]:
    scores = _host_scores(rows.scores.logprobs, rows.scores.top_ids, rows.scores.top_logprobs)
    placed = zip(rows.of.tolist(), rows.positions.tolist(), rows.token_ids.tolist(), strict=True)
    for row, (at, position, token) in enumerate(placed):
        entry = results.token_logprob(scores, row, token, int(rows.top_logprobs[row]))
        yield results.scored(chunks[at], position, entry)


def _host_scores(logprobs: Tensor, top_ids: Tensor | None, top_logprobs: Tensor | None) -> ScoredBatch:
    none = np.zeros((len(logprobs), 0), np.float32)
    return ScoredBatch(
        logprobs.numpy(),
        none.astype(np.int32) if top_ids is None else top_ids.numpy(),
        none if top_logprobs is None else top_logprobs.numpy(),
    )
