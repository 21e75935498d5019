"""Softmax attention over the KV cache (Vaswani et al., arXiv 1706.03762)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from inflight.execution.backends.position_bias import reach_of
from inflight.execution.backends.protocol import Array
from inflight.execution.backends.protocol.handles import Activation, Vector
from inflight.execution.ops.formulas import soft_capped
from inflight.execution.ops.numpy_pass import CachedLayer, NumpyPass
from inflight.execution.program import operation


@operation()
def attention(
    on: NumpyPass,
    q: Activation,
    layer: int,
    scale: float,
    window: int,
    out: Activation,
    soft_cap: float = 0.0,
    sinks: Vector | None = None,
    causal: bool = True,
    position_bias: Vector | None = None,
) -> None:
    """q act[T, H·D] → out act[T, H·D]. A query at position p sees positions max(0, p - window + 1) … p of its own
    chunk's block table; window 0 sees all. Not causal: p - window … p + window, up to the chunk's last; window 0
    all of these. Query head h reads key/value head h // (H / G). In bfloat16 the
    probabilities are rounded before they meet the values (over quantized ones, see `KVShape`); their sum is not.
    scale > 0. soft_cap c > 0: a scaled score becomes c · tanh(score / c). sinks float32[H]: a score of each head,
    neither scaled nor capped, that takes its share of the probabilities and has no value. position_bias float32[H ·
    (2·L + 63)], not of causal attention: to the scaled score of head h, of a query at p and a key at k, which are
    less than L, number k - p + L - 1 of the head's is added; its last 64 are never meant."""
    cached, starts = on.kv_cache.layer(layer), on.metadata.query_start
    kv_heads, key_dim = cached.keys.numbers.shape[2:]
    out.rows = q.rows
    group = q.width // (kv_heads * key_dim)
    queries = on.load(q).reshape(q.rows, kv_heads, group, key_dim)  # [T, G, H / G, D]
    into = out.written.reshape(q.rows, kv_heads, group, out.width // (kv_heads * group))  # [T, G, H / G, M]
    of_heads = [None] * kv_heads if sinks is None else sinks.reshape(kv_heads, -1)
    biases = None if position_bias is None else position_bias.reshape(kv_heads, group, -1)
    rounded = np.asarray if cached.keys.scales is not None else on.act.rounded
    for chunk in np.flatnonzero(np.diff(starts)).tolist():
        context = int(on.metadata.context_len[chunk])
        end = context + int(starts[chunk + 1] - starts[chunk])
        first = max(0, context - window + 1) if window and causal else 0  # blocks before it may be another sequence's
        keys, values = _of_chunk(on, chunk, cached, range(first, end), into.shape[-1])
        for t in range(starts[chunk], starts[chunk + 1]):
            position = int(on.metadata.positions[t])
            seen = seen_from(position, window, None if causal else end)
            at = slice(seen.start - first, seen.stop - first)
            for head, sink in enumerate(of_heads):
                bias = None if biases is None else biases[head][:, _bias_at(biases.shape[2], position, seen)]
                found = attend(queries[t, head], keys[head, at], values[head, at], scale, soft_cap, sink, rounded, bias)
                into[t, head] = on.act.store(found)


def _of_chunk(on: NumpyPass, chunk: int, cached: CachedLayer, positions: range, width: int) -> tuple[Array, Array]:
    """Return keys and values float32[G, P, …] of positions of a chunk's sequence; width: of a value."""
    at = cached.slots(np.arange(positions.start, positions.stop), on.metadata.block_tables[cached.group, chunk])
    keys = cached.keys.read(at)
    return keys, keys[:, :, :width] if cached.values is None else cached.values.read(at)


def seen_from(position: int, window: int, end: int | None = None) -> slice:
    """Return the positions that a query sees: its own and those before it, `window` in all; window 0: all of them. end:
    of a text of so many that is seen to both sides, `window` to each; window 0: all of it."""
    if end is None:
        return slice(max(0, position - window + 1) if window else 0, position + 1)
    return slice(max(0, position - window), min(end, position + window + 1)) if window else slice(0, end)


def _bias_at(width: int, position: int, seen: slice) -> slice:
    """Return where a head's `width` numbers for distances have those of the positions that a query sees."""
    zero = reach_of(width) - 1 - position
    return slice(seen.start + zero, seen.stop + zero)


def attend(
    queries: Array,
    keys: Array,
    values: Array,
    scale: float,
    soft_cap: float,
    sinks: Array | None,
    rounded: Callable[[Array], Array],
    bias: Array | None = None,
) -> Array:
    """Attend for the query heads of one key/value head (Ainslie et al., arXiv 2305.13245): queries float32[H / G, D],
    keys float32[P, D], values float32[P, M] → float32[H / G, M].

        s[p] = scale · q · k[p], soft-capped where there is a cap, plus bias[p] where there is one
        w[p] = exp(s[p] - m)            with m the largest of all s, and of the sink
        out  = Σ rounded(w[p]) · v[p] / (Σ w[p] + exp(sink - m))

    sinks float32[H / G]: a score without a value for each head (as in gpt-oss; Xiao et al., arXiv 2309.17453). rounded:
    rounding of probabilities before they meet the values; their sum is not rounded. bias float32[H / G, P].
    """
    scores = queries @ keys.T * np.float32(scale)
    scores = soft_capped(scores, soft_cap) if soft_cap else scores
    scores = scores if bias is None else scores + bias
    own = scores[:, :0] if sinks is None else sinks[:, None]
    top = np.concatenate([scores, own], axis=1).max(axis=1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(axis=1, keepdims=True) + np.exp(own - top).sum(axis=1, keepdims=True)
    found: Array = rounded(weights) @ values / total
    return found
