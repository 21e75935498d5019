"""Packing: a checkpoint's matrix → what a product multiplies by.

Knows the kinds of matrices (`matrices.py`) and the ways to hold them; everything is copied, so that the source may go.
"""

from __future__ import annotations

import numpy as np

from inflight.execution.backends import grouped, int4
from inflight.execution.backends.matrices import BlockMatrix, Fp8Matrix, Matrix, dequantized, in_int8
from inflight.execution.backends.protocol import Array, Hold
from inflight.execution.backends.reference.act import Act
from inflight.execution.backends.reference.weights import Held


def held(matrix: Matrix, act: Act, hold: Hold, group: int) -> Held:
    """Keep quantized matrices as they are, and convert plain numbers as `hold` says. group: inputs to a scale, in
    int4."""
    if isinstance(matrix, BlockMatrix):
        return held(matrix.unpacked(), act, hold, group)
    if isinstance(matrix, Fp8Matrix):
        return grouped.hold(in_int8(matrix))
    if not isinstance(matrix, np.ndarray):
        return grouped.hold(matrix)
    if hold == "int8":
        return grouped.hold_mixed(dequantized(matrix))
    if hold == "int4":
        return grouped.hold(int4.quantize(dequantized(matrix), group))
    return converted(matrix, act)


def converted(source: Array, act: Act) -> Array:
    """Copy a checkpoint's plain numbers to `act`."""
    is_act_already = source.dtype == np.uint16 and act.dtype == "bfloat16"
    return source.copy() if is_act_already else act.hold(dequantized(source))
