"""Numbers in 8 bits of which four are exponents: E4M3 of the OCP 8-bit floating point format (float8_e4m3fn).

Knows what a code means: a sign, 4 bits of exponent with bias 7, 3 of fraction; no infinities, and all ones are not a
number. Who quantizes to it, and by which rule, is the backend for GPUs, which alone multiplies such numbers.
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
