"""Functions of tiles of float32 numbers, for kernels to call: activation functions, rounding to 8 bits, mixing.

The formulas are those of `execution/ops/formulas.py` and `backends.int8`. Only what Triton's interpreter has, too, is
used: no library functions of a device.
"""

from __future__ import annotations

import triton
import triton.language as tl

_GELU_SLOPE = tl.constexpr(1.5957691216057308)  # 2 · √(2/π)
_SMALLEST = tl.constexpr(2.0**-100)  # below it nothing is quantized
_LARGEST = tl.constexpr(3.4028234663852886e38)  # of float32
_WHOLE = tl.constexpr(1.5 * 2.0**23)  # float32 numbers around it are whole


@triton.jit
def times_sigmoid(x, y):
    """x · sigmoid(y), rounded once less than the product would be."""
    return x / (1.0 + tl.exp(-y))


@triton.jit
def activated(x, ACTIVATION: tl.constexpr, above, below):
    """Apply the function of that name (`Nonlinearity`). above, below: p and n of xielu; no other function reads
    them."""
    if ACTIVATION == "silu":
        return times_sigmoid(x, x)
    elif ACTIVATION == "gelu_tanh":
        return times_sigmoid(x, _GELU_SLOPE * (x + 0.044715 * x * x * x))
    elif ACTIVATION == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "relu":
        return tl.maximum(x, 0.0)
    elif ACTIVATION == "tanh":
        return 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))
    elif ACTIVATION == "relu2":
        positive = tl.maximum(x, 0.0)
        return positive * positive
    else:
        tl.static_assert(ACTIVATION == "xielu")
        bent = expm1(tl.minimum(x, -1e-6)) - x
        return tl.where(x > 0, above * x * x, below * bent) + 0.5 * x


@triton.jit
def expm1(x):
    """eˣ - 1 of x ≤ 0. Near 0, where its digits would cancel, by the first terms of the series, which leave out less
    than 10⁻⁸ of it."""
    series = 1.0 / 362880
    series = series * x + 1.0 / 40320
    series = series * x + 1.0 / 5040
    series = series * x + 1.0 / 720
    series = series * x + 1.0 / 120
    series = series * x + 1.0 / 24
    series = series * x + 1.0 / 6
    series = series * x + 0.5
    return tl.where(x > -0.5, series * x * x + x, tl.exp(x) - 1.0)


@triton.jit
def nearest(x):
    """Round to the nearest whole number, ties to even, for |x| ≤ 2²²; relies on float32's rounding of the sum."""
    return (x + _WHOLE) - _WHOLE


@triton.jit
def quantized(x, LIMIT: tl.constexpr):
    """float32[R, K] → codes float32[R, K] whose largest magnitude is LIMIT, and scales float32[R]: 127 for int8, before
    `nearest`, and 448 for float8_e4m3fn. By the rule of `int8.py`: where nothing is larger than 2⁻¹⁰⁰ all is 0, where
    something is no finite number the scale is NaN and all else 0."""
    magnitudes = tl.abs(x)
    finite = tl.min((magnitudes <= _LARGEST).to(tl.int32), axis=1) > 0
    largest = tl.max(magnitudes, axis=1)
    used = finite & (largest >= _SMALLEST)
    safe = tl.where(used, largest, 1.0)
    scales = tl.where(used, tl.div_rn(safe, LIMIT), tl.where(finite, 0.0, float("nan")))
    codes = x * tl.div_rn(LIMIT, safe)[:, None]
    return tl.where(used[:, None], codes, 0.0), scales


@triton.jit
def mixed_channels(x, STAGES: tl.constexpr, FACTOR: tl.constexpr):
    """float32[heads, BLOCK] → each run of 2^STAGES numbers transformed, by the rule of `channel_mixing`."""
    heads: tl.constexpr = x.shape[0]
    block: tl.constexpr = x.shape[1]
    for stage in tl.static_range(STAGES):
        pairs = tl.reshape(x, (heads, block >> (stage + 1), 2, 1 << stage))
        first, second = tl.split(tl.permute(pairs, (0, 1, 3, 2)))
        x = tl.reshape(tl.permute(tl.join(first + second, first - second), (0, 1, 3, 2)), (heads, block))
    return x * FACTOR


@triton.jit
def e4m3_bits(x):
    """float32, |x| ≤ 448 → uint8, the bits of the nearest float8_e4m3fn, ties to even: by whole numbers, since neither
    sm_80 nor the interpreter has that conversion. The format has 3 bits of mantissa, exponents from -6 on, and below
    these steps of 2⁻⁹."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    small = nearest(tl.abs(x) * 512.0).to(tl.int32)
    code = tl.where(tl.abs(x) < 0.015625, small, normal)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)
