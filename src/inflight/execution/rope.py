"""Rotary position embedding: a model's rope settings, and the table of cosines and sines that they mean.

Knows the scaling variants default, linear, dynamic, llama3 and yarn, and repeats the float32 steps by which
`transformers` computes their frequencies, so that both round at the same places. Does not know how a table is applied
(the op set does that) or which positions a request will use.

`dynamic` lets its frequencies follow the current sequence length in `transformers`. A key that is written once into a
cache, shared between requests and recomputed in chunks cannot do that, so here they are fixed for the longest position
that the table holds. Up to the model's own length this is the same thing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from inflight.execution.errors import ModelError
from inflight.execution.ops.protocol import Array, RopeTable
from inflight.json_file import shown

_DEFAULT_THETA = 10_000.0
MOST_POSITIONS = 2**26  # seven times the longest context that a model was ever published with
_LEAST, _MOST = 1e-9, 1e15  # of any number of a variant: beyond, floats overflow and nothing makes sense
_SLAB_POSITIONS = 4096  # positions turned at a time: the float64 intermediate stays a few MB


@dataclass(frozen=True, slots=True)
class RopeSettings:
    """Everything that the table depends on but the number of positions. Fields a variant does not use keep defaults."""

    kind: str = "default"
    head_dim: int = 128
    theta: float = _DEFAULT_THETA
    length: int = 2048  # max_position_embeddings
    original_length: int = 2048  # positions of the model before it was stretched (llama3, yarn)
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: whole dimensions as borders of the ramp
    attention_factor: float = 1.0  # multiplies cosines and sines (yarn)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], head_dim: int, length: int) -> RopeSettings:
        """Reads a config.json, old style (`rope_theta`, `rope_scaling`) or new (`rope_parameters`).

        `head_dim` and `length` (max_position_embeddings) are those of the model. Raises ModelError for an unknown
        variant, a missing or senseless number, and for rotations that this decoder does not have.
        """
        given = data.get("rope_scaling") or data.get("rope_parameters") or {}
        if not isinstance(given, Mapping):
            raise ModelError(f"rope_scaling in config.json must be an object or null, not {shown(given)}.")
        kind = given.get("rope_type") or given.get("type") or "default"
        if any(isinstance(value, Mapping) for value in given.values()):
            raise ModelError("config.json sets rotary embeddings per layer type, which no supported family does.")
        if not isinstance(kind, str) or kind not in _FREQUENCIES:
            raise ModelError(f"rope type {shown(kind)} is not supported; these are: {', '.join(_FREQUENCIES)}.")
        partial = given.get("partial_rotary_factor") or data.get("partial_rotary_factor") or 1.0
        if partial != 1:
            raise ModelError(
                f"partial_rotary_factor {shown(partial)} is not supported; the whole head must be rotated (1.0)."
            )
        numbers = _Numbers(kind, given)
        theta = numbers.get("rope_theta", data.get("rope_theta") or _DEFAULT_THETA)
        if theta <= 1:
            raise ModelError(f"rope_theta must be larger than 1, not {theta}.")
        # Phi-style checkpoints write the original length beside the rope object; there it goes first.
        key = "original_max_position_embeddings"
        original = numbers.get(key, length) if data.get(key) is None else _Numbers(kind, data).get(key)
        if original < 1:
            raise ModelError(f"{key} of rope type {kind!r} must be at least 1, not {original}.")
        settings = _with_scaling(cls(kind, head_dim, theta, length, int(original)), numbers)
        if settings.longest > MOST_POSITIONS:
            raise ModelError(
                f"factor {settings.factor:g} of rope type {kind!r} stretches the model to {settings.longest:,} "
                f"positions; at most {MOST_POSITIONS:,} are possible."
            )
        return settings

    @property
    def longest(self) -> int:
        """Positions that the settings were made for: `length`, or more where the variant stretches beyond it."""
        if self.kind == "yarn":
            return max(self.length, int(self.original_length * self.factor))
        if self.kind == "dynamic":
            return max(self.length, int(self.length * self.factor))
        return self.length


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Reads numbers out of the rope object of one variant, and says which is missing."""

    kind: str
    given: Mapping[str, Any]

    def get(self, key: str, default: float | None = None) -> float:
        value = self.given.get(key)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"rope type {self.kind!r} needs {key!r}, which config.json does not give.")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ModelError(f"{key} of rope type {self.kind!r} must be a number above 0, not {shown(value)}.")
        if not _LEAST <= value <= _MOST:
            raise ModelError(
                f"{key} of rope type {self.kind!r} is {shown(value)}, which makes no sense; it must lie between "
                f"{_LEAST:g} and {_MOST:g}."
            )
        return float(value)


def _with_scaling(base: RopeSettings, numbers: _Numbers) -> RopeSettings:
    """Adds what the variant of `base` needs on top of theta and lengths."""
    shared = (base.kind, base.head_dim, base.theta, base.length, base.original_length)
    if base.kind == "default":
        return base
    if base.kind == "yarn":
        # Checkpoints that leave `factor` out mean the ratio of the two lengths.
        factor = numbers.get("factor", base.length / base.original_length)
        return RopeSettings(
            *shared,
            factor=factor,
            beta_fast=numbers.get("beta_fast", 32.0),
            beta_slow=numbers.get("beta_slow", 1.0),
            truncate=bool(numbers.given.get("truncate", True)),
            attention_factor=_yarn_attention_factor(factor, numbers),
        )
    factor = numbers.get("factor")
    if base.kind != "llama3":
        return RopeSettings(*shared, factor=factor)
    low, high = numbers.get("low_freq_factor"), numbers.get("high_freq_factor")
    if high <= low:
        raise ModelError(f"rope type 'llama3' needs high_freq_factor above low_freq_factor, not {high} and {low}.")
    return RopeSettings(*shared, factor=factor, low_freq_factor=low, high_freq_factor=high)


def _yarn_attention_factor(factor: float, numbers: _Numbers) -> float:
    """Stated, or 0.1 · mscale · ln(factor) + 1 (YaRN, equation 22), or the quotient of two such if both are given."""

    def scale(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    given = numbers.given
    if given.get("attention_factor") is not None:
        return numbers.get("attention_factor")
    if given.get("mscale") and given.get("mscale_all_dim"):
        return scale(numbers.get("mscale")) / scale(numbers.get("mscale_all_dim"))
    return scale(1.0)


def rope_table(settings: RopeSettings, max_positions: int) -> RopeTable:
    """Cosines and sines for positions 0 … max_positions - 1, float32[max_positions, head_dim / 2] each."""
    inverse = inverse_frequencies(settings, max_positions)
    cos = np.empty((max_positions, len(inverse)), np.float32)
    sin = np.empty_like(cos)
    scale = np.float32(settings.attention_factor)
    for start in range(0, max_positions, _SLAB_POSITIONS):
        slab = slice(start, min(start + _SLAB_POSITIONS, max_positions))
        # The angle is rounded to float32, as the oracle does; its cosine is not, until it is stored.
        angles = np.arange(slab.start, slab.stop, dtype=np.float32)[:, None] * inverse
        wide = angles.astype(np.float64)
        cos[slab] = np.cos(wide)
        sin[slab] = np.sin(wide)
    if scale != 1:
        cos *= scale
        sin *= scale
    return RopeTable(cos, sin)


def inverse_frequencies(settings: RopeSettings, max_positions: int) -> Array:
    """Radians per position of each pair of dimensions, float32[head_dim / 2]."""
    return _FREQUENCIES[settings.kind](settings, max_positions)


def _powers(theta: float, head_dim: int) -> Array:
    """theta^(2i / D), float32: the power taken in float64 of the float32 exponent, which is its best rounding."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return np.power(np.float64(np.float32(theta)), exponents.astype(np.float64)).astype(np.float32)


def _default(settings: RopeSettings, max_positions: int) -> Array:
    return np.float32(1) / _powers(settings.theta, settings.head_dim)


def _linear(settings: RopeSettings, max_positions: int) -> Array:
    return _default(settings, max_positions) / np.float32(settings.factor)


def _dynamic(settings: RopeSettings, max_positions: int) -> Array:
    """NTK-aware: theta grows with the longest position, so that the slowest pair still turns as far as trained."""
    stretch = settings.factor * max(max_positions, settings.length) / settings.length - (settings.factor - 1)
    exponent = settings.head_dim / (settings.head_dim - 2) if settings.head_dim > 2 else 1.0
    return np.float32(1) / _powers(settings.theta * stretch**exponent, settings.head_dim)


def _llama3(settings: RopeSettings, max_positions: int) -> Array:
    """Long wavelengths are divided by the factor, short ones kept, those between blended (Llama 3.1)."""
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
    """Fast pairs keep their frequency, slow ones are divided by the factor, with a ramp between (YaRN, section 3.2)."""
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


_FREQUENCIES: dict[str, Callable[[RopeSettings, int], Array]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
}
