"""Functions that the kernels of a draw share: tokens as sortable keys, the generator, the settings of a row.

`SamplingBatch` has the rules. A key orders tokens by falling logit, ties by rising id, in one comparison of whole
numbers: the logit's bits, made monotone, above the complement of the id. Probabilities are float64 everywhere, and
relative to that of the likeliest token.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-(2**63) + 1)  # below the key of any token
_IDS = tl.constexpr(0x7FFFFFFF)


@triton.jit
def key_of(logit, token_id):
    """float32 without NaN and int32 → int64. The sum makes one zero of the two."""
    return (ordered(logit).to(tl.int64) << 32) | (token_id ^ _IDS)


@triton.jit
def ordered(logit):
    """float32 without NaN → int32 in the same order."""
    bits = (logit + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def logit_of(key):
    return value_of((key >> 32).to(tl.int32))


@triton.jit
def value_of(place):
    """Return the number from which `ordered` made this."""
    return (place ^ ((place >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def id_of(key):
    return ((key & _IDS) ^ _IDS).to(tl.int32)


@triton.jit
def best_of(best, row, COUNT: tl.constexpr, TILE: tl.constexpr):
    """Return the largest of a row's COUNT keys."""
    at = tl.arange(0, TILE)
    return tl.max(tl.load(best + row * COUNT + at, mask=at < COUNT, other=LOWEST), axis=0)


@triton.jit
def is_finite(x):
    return tl.abs(x) < float("inf")


@triton.jit
def peak_of(key, temperature):
    """Return the largest scaled logit, and whether the row is drawn by chance at all."""
    peak = tl.div_rn(logit_of(key), tl.where(temperature > 0, temperature, 1.0))
    return peak, (temperature > 0) & is_finite(peak)


@triton.jit
def is_filtered(top_k, top_p, min_p):
    return (top_k > 0) | (top_p < 1) | (min_p > 0)


@triton.jit
def weight_of(scaled, peak):
    """Return a probability as a multiple of the likeliest token's: float64."""
    return tl.exp(scaled.to(tl.float64) - peak.to(tl.float64))


@triton.jit
def uniform(seed, draw_index, sample_index):
    """Return the documented draw in [0, 1): words 0 (low) and 1 (high) form 64 bits, the upper 53 are the fraction."""
    low, high, _, _ = tl.philox(seed, draw_index, sample_index.to(tl.uint32), 0, 0)
    fraction = (high.to(tl.int64) << 21) | (low >> 11).to(tl.int64)
    return fraction.to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def log_of(min_p):
    """How far from the likeliest a token may lie for min-p: float64, -inf where it is off."""
    return tl.where(min_p > 0, tl.log(tl.where(min_p > 0, min_p, 1.0)), float("-inf"))
