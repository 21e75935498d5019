"""Packs a checkpoint's matrices as numpy definitions read them. All is copied, so that the source may be released."""

from __future__ import annotations

import numpy as np

from inflight.execution.backends import grouped, int4
from inflight.execution.backends.matrices import BlockMatrix, Fp8Matrix, Matrix, dequantized, in_int8
from inflight.execution.backends.protocol import Array, Hold
from inflight.execution.ops.numpy_pass import Act
from inflight.execution.ops.numpy_weights import Packed


def packed(matrix: Matrix, act: Act, hold: Hold, group: int) -> Packed:
    """Keep quantized matrices as they are, and convert plain numbers as `hold` says. group: inputs to a scale, in
    int4."""
    if isinstance(matrix, BlockMatrix):
        return packed(matrix.unpacked(), act, hold, group)
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
    return source.copy() if is_act_already else act.store(dequantized(source))
