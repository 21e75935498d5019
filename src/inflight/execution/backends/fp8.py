"""Numbers in 8 bits of which four are exponents: E4M3 of the OCP 8-bit floating point format (float8_e4m3fn).

A code is a sign, 4 bits of exponent with bias 7, 3 of fraction; no infinities, and all ones are not a number. Only GPUs
multiply such numbers. A row is quantized as to int8 (`int8.quantize`), with 448, the largest number, for 127.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def _meanings() -> Array:
    codes = np.arange(256)
    exponents, fractions = codes >> 3 & 15, codes & 7
    sizes = np.where(exponents > 0, np.ldexp(8.0 + fractions, exponents - 10), np.ldexp(1.0 * fractions, -9))
    sizes[codes & 127 == 127] = np.nan
    return np.asarray(np.where(codes < 128, sizes, -sizes), np.float32)


E4M3 = _meanings()  # float32[256]
LARGEST = np.float32(448)
_SMALLEST = np.float32(2.0**-100)  # as in `int8.py`: a smaller number counts as 0


def quantize(rows: Array) -> tuple[Array, Array]:
    """Quantize each row with one scale: float32[N, K] → codes uint8[N, K] and scales float32[N]. Rows that cannot be
    scaled are as in `int8.quantize`."""
    largest = np.abs(rows).max(axis=1, initial=0)
    finite = np.isfinite(largest)
    used = finite & (largest >= _SMALLEST)
    safe = np.where(used, largest, np.float32(1))
    with np.errstate(invalid="ignore"):  # infinity · 0
        scaled = np.where(used[:, None], np.clip(rows * (LARGEST / safe)[:, None], -LARGEST, LARGEST), 0)
    scales = np.where(used, safe / LARGEST, np.where(finite, np.float32(0), np.float32(np.nan)))
    return encoded(scaled.astype(np.float32)), scales.astype(np.float32)


def encoded(values: Array) -> Array:
    """float32 from -448 to 448 → the nearest codes, uint8, ties to even."""
    exponents = np.maximum(np.frexp(values)[1] - 1, -6)  # of the smallest normal number; below it steps are equal
    steps = np.ldexp(np.float32(1), exponents - 3)
    sizes = np.abs(np.rint(values / steps) * steps)
    codes = np.searchsorted(E4M3[:127], sizes)
    return np.asarray(codes | np.where(np.signbit(values), 128, 0), np.uint8)
