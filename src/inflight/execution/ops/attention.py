"""Attention over the KV cache."""

from __future__ import annotations

from inflight.execution.backends.protocol.handles import Activation, Vector
from inflight.execution.program import Program, operation


@operation
def attention(
    program: Program,
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
