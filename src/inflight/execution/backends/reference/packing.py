"""Packing: a checkpoint's matrix → what a product multiplies by.

Knows the kinds of matrices (`matrices.py`) and the ways to hold them; everything is copied, so that the source may go.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from inflight.execution.backends import int4, int8
from inflight.execution.backends.matrices import (
    BlockMatrix,
    Fp8Matrix,
    Int4Matrix,
    Int8Matrix,
    Matrix,
    ReorderedMatrix,
    dequantized,
    in_int8,
)
from inflight.execution.backends.protocol import Array, Hold
from inflight.execution.backends.reference.act import Act
from inflight.execution.backends.reference.weights import Held


def held(matrix: Matrix, act: Act, hold: Hold, group: int) -> Held:
    """What comes quantized stays as it is, plain numbers are held as `hold` says. group: inputs to a scale, in int4."""
    if isinstance(matrix, BlockMatrix):
        return held(matrix.unpacked(), act, hold, group)
    if isinstance(matrix, Fp8Matrix):
        return in_int8(matrix)
    if isinstance(matrix, Int8Matrix):
        return Int8Matrix(matrix.values.copy(), matrix.scales.copy())
    if isinstance(matrix, ReorderedMatrix):
        return replace(int4.hold(_copied(matrix.matrix)), order=matrix.order.copy())
    if isinstance(matrix, Int4Matrix):
        return int4.hold(_copied(matrix))
    if hold == "int8":
        return Int8Matrix(*int8.quantize(dequantized(matrix)))
    if hold == "int4":
        return int4.hold(int4.quantize(dequantized(matrix), group))
    return converted(matrix, act)


def converted(source: Array, act: Act) -> Array:
    """A checkpoint's plain numbers → `act`, copied."""
    is_act_already = source.dtype == np.uint16 and act.dtype == "bfloat16"
    return source.copy() if is_act_already else act.hold(dequantized(source))


def _copied(matrix: Int4Matrix) -> Int4Matrix:
    return replace(matrix, codes=matrix.codes.copy())
