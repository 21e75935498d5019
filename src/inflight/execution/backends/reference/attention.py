"""Softmax attention (Vaswani et al., arXiv 1706.03762) of one query: the formula, and nothing of blocks or passes.

Knows one key/value head and the query heads that share it (Ainslie et al., arXiv 2305.13245).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from inflight.execution.backends.position_bias import reach_of
from inflight.execution.backends.protocol import Array
from inflight.execution.backends.reference.functions import soft_capped


def seen_from(position: int, window: int, end: int | None = None) -> slice:
    """Positions that a query sees: its own and those before it, `window` in all; window 0: all of them. end: of a text
    of so many that is seen to both sides, `window` to each; window 0: all of it."""
    if end is None:
        return slice(max(0, position - window + 1) if window else 0, position + 1)
    return slice(max(0, position - window), min(end, position + window + 1)) if window else slice(0, end)


def bias_at(width: int, position: int, seen: slice) -> slice:
    """Where a head's `width` numbers for distances have those of the positions that a query sees."""
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
    """Attend: queries float32[H / G, D], keys float32[P, D], values float32[P, M] → float32[H / G, M].

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
