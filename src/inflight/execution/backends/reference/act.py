"""Activation rounding: where float32 becomes `act`, and bits are lost.

Knows the two formats of `act` (bf16 as its upper halves, or float32 itself). Everything between two calls of `hold` is
computed in float32, so that a difference between two backends can only arise here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from inflight.execution.backends.bf16 import from_bf16, to_bf16
from inflight.execution.backends.protocol import Array, DType


@dataclass(frozen=True, slots=True)
class Act:
    dtype: DType

    @property
    def item(self) -> np.dtype[Any]:
        """Return the numpy type of arrays of `act`."""
        return np.dtype(np.uint16 if self.dtype == "bfloat16" else np.float32)

    def hold(self, values: Array) -> Array:
        """float32 → `act`, to nearest even."""
        return to_bf16(values) if self.dtype == "bfloat16" else np.asarray(values, np.float32)

    def read(self, held: Array) -> Array:
        """`act` → float32, exactly."""
        return from_bf16(held) if self.dtype == "bfloat16" else np.asarray(held, np.float32)

    def rounded(self, values: Array) -> Array:
        """float32 → the float32 that `act` keeps of it."""
        return self.read(self.hold(values))
