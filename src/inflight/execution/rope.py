"""Compute the table of cosines and sines that a model's rotary position embedding means."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from inflight.execution.backends.protocol import Array, RopeTable
from inflight.models.errors import ModelError
from inflight.models.rope import RopeSettings
from inflight.models.spec import ModelSpec

_SLAB_POSITIONS = 512  # that are computed at a time, in two milliseconds or less


def rope_settings(model: ModelSpec) -> tuple[RopeSettings, ...]:
    """Return every rotation of a model that this engine runs. Raises ModelError for one that is only described."""
    if not model.runs:
        raise ModelError(f"the family {model.family} is described, but not computed by this decoder; take a dense one.")
    return model.ropes


def rope_table(settings: RopeSettings, max_positions: int) -> RopeTable:
    """Return cosines and sines for positions 0 … max_positions - 1, float32[max_positions, head_dim / 2] each.

    None of them is computed before it is reached: those of 131,072 positions take as long as packing a small model.
    Frequencies repeat the float32 steps of `transformers`, so that both round alike. There, those of `dynamic` follow
    the current sequence length. A key that is cached, shared between requests and recomputed in chunks cannot do that:
    here they are fixed for the longest position of the table, which up to the model's own length is the same. So it is
    with `longrope`, whose factors are those for long texts where the table has more positions than the model had before
    it was stretched.
    """
    inverse = inverse_frequencies(settings, max_positions)
    cos = np.empty((max_positions, len(inverse)), np.float32)
    sin = np.empty_like(cos)
    is_short = settings.kind == "longrope" and max_positions <= settings.original_length
    scale = np.float32(settings.short_attention_factor if is_short else settings.attention_factor)
    computed = 0

    def grow(positions: int) -> None:
        nonlocal computed
        while computed < min(positions, max_positions):
            slab = slice(computed, min(computed + _SLAB_POSITIONS, max_positions))
            # The angle is rounded to float32, as the oracle does; its cosine is not, until it is stored.
            angles = np.arange(slab.start, slab.stop, dtype=np.float32)[:, None] * inverse
            wide = angles.astype(np.float64)
            cos[slab] = np.cos(wide)
            sin[slab] = np.sin(wide)
            if scale != 1:
                cos[slab] *= scale
                sin[slab] *= scale
            computed = slab.stop

    return RopeTable(cos, sin, _query_scale(settings, max_positions) if settings.query_growth else None, grow)


def _query_scale(settings: RopeSettings, max_positions: int) -> Array:
    """Return 1 + growth · ln(1 + ⌊position / original length⌋), float32[max_positions]."""
    lengths = np.floor(np.arange(max_positions, dtype=np.float32) / np.float32(settings.original_length))
    scale: Array = np.float32(1) + np.float32(settings.query_growth) * np.log1p(lengths)
    return scale


def inverse_frequencies(settings: RopeSettings, max_positions: int) -> Array:
    """Return the radians per position of each pair of dimensions, float32[head_dim / 2]."""
    return _FREQUENCIES[settings.kind](settings, max_positions)


def _powers(theta: float, head_dim: int) -> Array:
    """Return theta^(2i / D), float32: the power taken in float64 of the float32 exponent, its best rounding."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return np.power(np.float64(np.float32(theta)), exponents.astype(np.float64)).astype(np.float32)


def _default(settings: RopeSettings, max_positions: int) -> Array:
    return np.float32(1) / _powers(settings.theta, settings.head_dim)


def _linear(settings: RopeSettings, max_positions: int) -> Array:
    return _default(settings, max_positions) / np.float32(settings.factor)


def _dynamic(settings: RopeSettings, max_positions: int) -> Array:
    """Grow theta with the longest position (NTK-aware), so that the slowest pair still turns as far as trained."""
    stretch = settings.factor * max(max_positions, settings.length) / settings.length - (settings.factor - 1)
    exponent = settings.head_dim / (settings.head_dim - 2) if settings.head_dim > 2 else 1.0
    return np.float32(1) / _powers(settings.theta * stretch**exponent, settings.head_dim)


def _llama3(settings: RopeSettings, max_positions: int) -> Array:
    """Divide long wavelengths by the factor, keep short ones, blend those between (Llama 3.1)."""
    inverse = _default(settings, max_positions)
    length, factor = np.float32(settings.original_length), np.float32(settings.factor)
    low, high = settings.low_freq_factor, settings.high_freq_factor
    wavelength = np.float32(2 * math.pi) / inverse
    is_long = wavelength > settings.original_length / low
    is_short = wavelength < settings.original_length / high
    scaled = np.where(is_long, inverse / factor, inverse)
    blend = (length / wavelength - np.float32(low)) / np.float32(high - low)
    blended = (np.float32(1) - blend) * scaled / factor + blend * scaled
    result: Array = np.where(~is_long & ~is_short, blended, scaled)
    return result


def _yarn(settings: RopeSettings, max_positions: int) -> Array:
    """Keep the frequency of fast pairs, divide slow ones by the factor, with a ramp between (YaRN, section 3.2)."""
    dim = settings.head_dim
    powers = _powers(settings.theta, dim)

    def dimension_of(rotations: float) -> float:
        turns = settings.original_length / (rotations * 2 * math.pi)
        return dim * math.log(turns) / (2 * math.log(settings.theta))

    low, high = dimension_of(settings.beta_fast), dimension_of(settings.beta_slow)
    if settings.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # the ramp must not divide by zero
    ramp = (np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    kept = np.float32(1) - np.clip(ramp, np.float32(0), np.float32(1))
    stretched = np.float32(1) / (np.float32(settings.factor) * powers)
    result: Array = stretched * (np.float32(1) - kept) + np.float32(1) / powers * kept
    return result


def _longrope(settings: RopeSettings, max_positions: int) -> Array:
    """Return LongRoPE's inverse frequencies, with a divisor for each pair."""
    is_long = max_positions > settings.original_length
    factors = np.array(settings.long_factors if is_long else settings.short_factors, np.float32)
    return np.float32(1) / (factors * _powers(settings.theta, settings.head_dim))


def _proportional(settings: RopeSettings, max_positions: int) -> Array:
    """Return the whole head's inverse frequencies for its fast pairs; 0 leaves other pairs unrotated (Gemma 4)."""
    turns = np.arange(settings.head_dim // 2) < settings.turned
    inverse: Array = np.where(turns, _default(settings, max_positions), np.float32(0)) / np.float32(settings.factor)
    return inverse


_FREQUENCIES: dict[str, Callable[[RopeSettings, int], Array]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
}
