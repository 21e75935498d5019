"""Sampling and scoring in numpy, row by row: the definition of the rules of `SamplingBatch`.

They are no operations of a program: a pass draws from the logits that its programs left.
"""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.protocol import Array, SampledBatch, SamplingBatch, ScoredBatch


def sample(logits: Array, batch: SamplingBatch) -> SampledBatch:
    rows = len(logits)
    wanted = np.where(batch.want_logprobs, batch.top_logprobs, 0)
    widest = min(int(wanted.max(initial=0)), logits.shape[1])
    yielded = SampledBatch(
        np.zeros(rows, np.int32),
        np.zeros(rows, np.float32),
        np.zeros((rows, widest), np.int32),
        np.zeros((rows, widest), np.float32),
    )
    for row in range(rows):
        untouched = _without_nan(logits[row])
        penalised = _penalised(untouched.copy(), batch, row)
        drawn = yielded.token_ids[row] = _draw(penalised.copy(), batch, row)
        if penalised[drawn] == -np.inf:  # there was nothing to draw
            logits[row, drawn] = -np.inf
        if batch.want_logprobs[row]:
            _report(untouched, yielded.token_ids[row], int(wanted[row]), yielded, row)
    return yielded


def score(logits: Array, token_ids: Array, top_logprobs: Array) -> ScoredBatch:
    rows = len(logits)
    widest = min(int(top_logprobs.max(initial=0)), logits.shape[1])
    yielded = ScoredBatch(
        np.zeros(rows, np.float32), np.zeros((rows, widest), np.int32), np.zeros((rows, widest), np.float32)
    )
    for row in range(rows):
        _report(_without_nan(logits[row]), token_ids[row], int(top_logprobs[row]), yielded, row)
    return yielded


def _without_nan(logits: Array) -> Array:
    return np.where(np.isnan(logits), np.float32(-np.inf), logits)


def _report(logits: Array, token_id: int, wanted: int, out: SampledBatch | ScoredBatch, row: int) -> None:
    """Log-probabilities of a token and of the likeliest, in double precision, → row of `out`."""
    peak = float(logits.max())
    with np.errstate(invalid="ignore"):
        logprobs = logits.astype(np.float64) - (peak + np.log(np.exp(logits.astype(np.float64) - peak).sum()))
    out.logprobs[row] = logprobs[token_id]
    best = np.argsort(-logits, kind="stable")[:wanted]
    out.top_ids[row, : len(best)] = best
    out.top_logprobs[row, : len(best)] = logprobs[best]


def _penalised(logits: Array, batch: SamplingBatch, row: int) -> Array:
    """Apply the mask, bias, then repetition, frequency and presence penalties, each in float32."""
    allowed = batch.allowed[row]
    if allowed is not None:
        marks = np.unpackbits(allowed.view(np.uint8), bitorder="little")[: len(logits)]
        logits[marks == 0] = -np.inf
    span = slice(batch.bias_offsets[row], batch.bias_offsets[row + 1])
    np.add.at(logits, batch.bias_ids[span], batch.bias_values[span])
    history = batch.histories[row]
    if history is not None:
        repetition = np.float32(batch.repetition_penalty[row])
        if repetition != 1:
            seen = np.unique(history)
            values = logits[seen]
            logits[seen] = np.where(values > 0, values / repetition, values * repetition)
        output, counts = np.unique(history[batch.prompt_lengths[row] :], return_counts=True)
        logits[output] -= np.float32(batch.frequency_penalty[row]) * counts.astype(np.float32)
        logits[output] -= np.float32(batch.presence_penalty[row])
    return logits


def _draw(logits: Array, batch: SamplingBatch, row: int) -> int:
    """Draw a token by a row's settings. A largest logit that is not finite leaves nothing to draw: it is taken."""
    greedy = int(np.argmax(logits))
    temperature = np.float32(batch.temperature[row])
    if not temperature > 0:
        return greedy
    with np.errstate(over="ignore"):
        scaled = logits / temperature
    if not np.isfinite(scaled[greedy]):
        return greedy
    distance = scaled.astype(np.float64) - np.float64(scaled[greedy])
    top_k, top_p, min_p = int(batch.top_k[row]), float(batch.top_p[row]), float(batch.min_p[row])
    if top_k <= 0 and top_p >= 1 and min_p <= 0:
        kept = np.arange(len(logits))
    else:
        kept = np.argsort(-distance, kind="stable")
        if min_p > 0:
            kept = kept[distance[kept] >= np.log(min_p)]  # p ≥ min_p · largest p
        if top_k > 0:
            kept = kept[:top_k]
        if top_p < 1:
            cumulative = np.cumsum(np.exp(distance[kept]))
            before = np.concatenate([[0.0], cumulative[:-1]])
            kept = kept[: max(1, int((before < top_p * cumulative[-1]).sum()))]
    cumulative = np.cumsum(np.exp(distance[kept]))
    u = uniform(int(batch.seed[row]), int(batch.draw_index[row]), int(batch.sample_index[row]))
    return int(kept[min(int(np.searchsorted(cumulative, u * cumulative[-1], side="right")), len(kept) - 1)])


def uniform(seed: int, draw_index: int, sample_index: int) -> float:
    """Return the documented draw in [0, 1): words 0 (low) and 1 (high) form 64 bits, the upper 53 are the fraction."""
    words = philox4x32_10((draw_index, sample_index, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))
    return ((words[1] << 32 | words[0]) >> 11) * 2.0**-53


def philox4x32_10(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox 4×32 with ten rounds (Salmon et al., 2011): a bijection of the counter under a key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3
