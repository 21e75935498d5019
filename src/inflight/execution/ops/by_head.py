"""A product of each head's part of a row with a matrix of its own."""

from __future__ import annotations

from inflight.execution.backends.protocol.handles import Activation, Heads
from inflight.execution.ops.linear import product
from inflight.execution.ops.numpy_pass import NumpyPass
from inflight.execution.program import operation


@operation()
def by_head(on: NumpyPass, x: Activation, weight: Heads, out: Activation) -> None:
    """x act[T, H·K] → out act[T, H·M], M ≥ N: the first N numbers of each head = x of the head · Wᵀ of the head.
    The others stay as they are."""
    out.rows = x.rows
    heads = on.load(x).reshape(x.rows, weight.count, weight.columns)
    into = out.written.reshape(x.rows, weight.count, out.width // weight.count)
    for head, matrix in enumerate(weight.matrices):
        into[:, head, : weight.rows] = on.act.store(product(heads[:, head], matrix, on.act))
