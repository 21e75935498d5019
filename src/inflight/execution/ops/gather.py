"""Rows of an activation picked out, and means of ranges of them."""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.protocol.handles import Activation
from inflight.execution.ops.numpy_pass import NumpyPass
from inflight.execution.program import operation


@operation(rows="places")
def gather(on: NumpyPass, x: Activation, out: Activation) -> None:
    """Rows of x float32[T, E] at the `places` of the run (indices into the pass's tokens) → out float32[S, E]."""
    out.write(x.array[list(on.places)])


@operation(rows="texts")
def mean(on: NumpyPass, x: Activation, out: Activation) -> None:
    """Means of the rows of x float32[T, E] in each of the run's `texts`, ranges of one or more → out float32[S, E]."""
    out.write(np.stack([x.array[one.start : one.stop].mean(axis=0, dtype=np.float64) for one in on.texts]))
