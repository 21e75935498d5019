"""The gated delta rule over a matrix of state for each head."""

from __future__ import annotations

from inflight.execution.backends.protocol.handles import Activation, Vector
from inflight.execution.program import Program, operation


@operation
def delta_rule(
    program: Program,
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
    gated norm of its outputs (Yang et al., "Gated Delta Networks", 2024).

    qkv float32[T, C]: queries and keys of `key_heads` heads, values of H. projected float32[T, C + H · value_dim]:
    behind its first C numbers the gate z of each value. gates float32[T, 2 · H]: b and a of each head. decay,
    step_bias float32[H]; norm float32[value_dim]. A head of keys serves H / key_heads neighbouring heads.

    q and k are divided by sqrt(Σ x² + 10⁻⁶), q by sqrt(key_dim) too; β = sigmoid(b); d = exp(decay · softplus(a +
    step_bias)). S ← d · S + k ⊗ β (v - d · kS); o = qS. out act[T, H · value_dim] = o / sqrt(mean(o²) + eps) · norm
    · silu(z). Everything before `out` is float32. A chunk that begins at position 0 has S = 0 before it; what S is
    after it, and where snapshots are due, is left as by `convolve`."""
