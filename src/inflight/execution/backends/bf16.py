"""bfloat16 for numpy, which has none: a bf16 array is a uint16 array of the upper halves of float32 values.

Rounding is to nearest even; NaN stays NaN, infinities stay infinite.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def to_bf16(values: Array) -> Array:
    """float32 (or anything that casts to it) → uint16 of the same shape, rounded to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)).astype(
        np.uint16
    )
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    if nan.any():
        # Adding could carry a NaN over into infinity: keep its upper half and make it quiet instead.
        rounded = np.where(nan, (bits >> np.uint32(16)).astype(np.uint16) | np.uint16(0x40), rounded)
    return rounded.reshape(np.shape(values))


def from_bf16(halves: Array) -> Array:
    """uint16 → float32 of the same shape, exactly."""
    return (np.ascontiguousarray(halves, dtype=np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
