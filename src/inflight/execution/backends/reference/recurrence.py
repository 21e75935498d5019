"""Layers that keep a state instead of keys and values: a short convolution, and the gated delta rule.

Knows one chunk of one sequence, or one token of it; not whose state it is (`states`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from inflight.execution.backends.protocol import Array


def convolved(inputs: Array, taps: Array) -> Array:
    """Convolve causally and depthwise: for each channel the sum over the last K inputs, the oldest first.

        y[t, c] = Σ taps[i, c] · inputs[t + i, c]

    inputs float32[K - 1 + T, C], of which the first K - 1 came before; taps float32[K, C] → float32[T, C].
    """
    count = len(inputs) - len(taps) + 1
    sums = np.zeros((count, inputs.shape[1]), np.float32)
    for back, tap in enumerate(taps):
        sums += tap * inputs[back : back + count]
    return sums


def delta_rule(state: Array, q: Array, k: Array, v: Array, beta: Array, decay: Array) -> Iterator[tuple[Array, Array]]:
    """Apply the gated delta rule (Yang et al., "Gated Delta Networks", arXiv 2412.06464), token by token: each head's
    state fades, then the value stored under a key moves towards a new value.

        S ← d · S;    S ← S + k ⊗ β (v - k S);    o = q S

    state S float32[H, key_dim, value_dim]; q and k float32[T, H, key_dim], v float32[T, H, value_dim], β and d
    float32[T, H]. Yields o float32[H, value_dim] of each token, and S after it.
    """
    for t in range(len(q)):
        state = state * decay[t, :, None, None]
        delta = (v[t] - (state * k[t, :, :, None]).sum(axis=1)) * beta[t, :, None]
        state = state + k[t, :, :, None] * delta[:, None]
        yield (state * q[t, :, :, None]).sum(axis=1), state
