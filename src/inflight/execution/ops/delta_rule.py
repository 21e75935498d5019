"""The gated delta rule over a matrix of state for each head (Yang et al., "Gated Delta Networks", arXiv 2412.06464)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from inflight.execution.backends.protocol import Array
from inflight.execution.backends.protocol.handles import Activation, Vector
from inflight.execution.ops.formulas import activated, rms_normed, sigmoid
from inflight.execution.ops.numpy_pass import NumpyPass
from inflight.execution.program import operation


@operation()
def delta_rule(
    on: NumpyPass,
    qkv: Activation,
    projected: Activation,
    gates: Activation,
    layer: int,
    key_heads: int,
    decay: Vector,
    step_bias: Vector,
    norm: Vector,
    eps: float,
    out: Activation,
) -> None:
    """Apply the gated delta rule of H heads with a state S float32[key_dim, value_dim] each, token by token, and a
    gated norm of its outputs.

    qkv float32[T, C]: queries and keys of `key_heads` heads, values of H. projected float32[T, C + H · value_dim]:
    behind its first C numbers the gate z of each value. gates float32[T, 2 · H]: b and a of each head. decay,
    step_bias float32[H]; norm float32[value_dim]. A head of keys serves H / key_heads neighbouring heads.

    q and k are divided by sqrt(Σ x² + 10⁻⁶), q by sqrt(key_dim) too; β = sigmoid(b); d = exp(decay · softplus(a +
    step_bias)). S ← d · S + k ⊗ β (v - d · kS); o = qS. out act[T, H · value_dim] = o / sqrt(mean(o²) + eps) · norm
    · silu(z). Everything before `out` is float32. A chunk that begins at position 0 has S = 0 before it; what S is
    after it, and where snapshots are due, is left as by `convolve`."""
    matrices, tokens = on.recurrent(layer).matrices, qkv.rows
    _, heads, key_dim, value_dim = matrices.shape
    parts = np.split(qkv.written, [key_heads * key_dim, 2 * key_heads * key_dim], axis=1)
    q, k = (_unit(one.reshape(tokens, key_heads, key_dim)).repeat(heads // key_heads, axis=1) for one in parts[:2])
    q, v = q * np.float32(key_dim**-0.5), parts[2].reshape(tokens, heads, value_dim)
    b, a = np.split(gates.written, 2, axis=1)
    beta, faded = sigmoid(b), np.exp(decay * _softplus(a + step_bias))
    found = np.empty_like(v)
    for chunk in on.state_chunks():
        of_chunk = (one[chunk.tokens] for one in (q, k, v, beta, faded))
        for done, (yielded, state) in enumerate(_steps(chunk.before(matrices), *of_chunk), 1):
            found[chunk.tokens.start + done - 1] = yielded
            if done in chunk.due:
                matrices[chunk.due[done]] = state
        matrices[chunk.state] = state
    z = projected.written[:, qkv.width :].reshape(found.shape)
    on.store((rms_normed(found, norm, eps) * activated(z, "silu")).reshape(tokens, out.width), out)


def _steps(state: Array, q: Array, k: Array, v: Array, beta: Array, decay: Array) -> Iterator[tuple[Array, Array]]:
    """Yield o float32[H, value_dim] of each token, and S after it: each head's state fades, then the value stored under
    a key moves towards a new value.

        S ← d · S;    S ← S + k ⊗ β (v - k S);    o = q S

    state S float32[H, key_dim, value_dim]; q and k float32[T, H, key_dim], v float32[T, H, value_dim], β and d
    float32[T, H].
    """
    for t in range(len(q)):
        state = state * decay[t, :, None, None]
        delta = (v[t] - (state * k[t, :, :, None]).sum(axis=1)) * beta[t, :, None]
        state = state + k[t, :, :, None] * delta[:, None]
        yield (state * q[t, :, :, None]).sum(axis=1), state


def _unit(x: Array) -> Array:
    """x / √(Σ x² + 10⁻⁶)."""
    found: Array = x / np.sqrt(np.sum(np.square(x), axis=-1, keepdims=True) + np.float32(1e-6))
    return found


def _softplus(x: Array) -> Array:
    """log(1 + eˣ), without its overflow."""
    found: Array = np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, np.float32(20)))))
    return found
