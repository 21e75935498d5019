"""Read rotary position embedding from a config.json, with bounds.

Scaling variants are default, linear, dynamic, llama3, yarn, longrope and proportional, in the old and the new spelling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from inflight.json_file import shown
from inflight.models.errors import ModelError

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional")
MAX_POSITIONS = 2**26  # seven times the longest context that a model was ever published with
_DEFAULT_THETA = 10_000.0
_MIN, _MAX = 1e-9, 1e15  # of any number of a variant: beyond, floats overflow and nothing makes sense


class RopeSettings(Struct, frozen=True):
    """Everything that the table depends on but the number of positions. Fields a variant does not use keep defaults.

    head_dim: values of a head that are rotated, the first ones. interleaved: in the checkpoint, value 2i turns with
    2i + 1; else value i with i + head_dim / 2, as everywhere here.
    """

    kind: str = "default"
    head_dim: int = 128
    theta: float = _DEFAULT_THETA
    length: int = 2048  # max_position_embeddings
    original_length: int = 2048  # positions of the model before it was stretched (llama3, yarn, longrope)
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: whole dimensions as borders of the ramp
    attention_factor: float = 1.0  # multiplies cosines and sines (yarn, longrope)
    short_attention_factor: float = 1.0  # longrope: the same, of as many positions as the original length
    score_factor: float = 1.0  # of latent attention: multiplies scores (yarn)
    short_factors: tuple[float, ...] = ()  # longrope: a divisor of each pair's frequency up to the original length
    long_factors: tuple[float, ...] = ()  # and where more positions are configured
    interleaved: bool = False
    turned: int = 0  # proportional: pairs of the head that turn, the first ones; the others stay as they are
    query_growth: float = 0.0  # queries are multiplied by 1 + this · ln(1 + ⌊position / original_length⌋) (Llama 4)

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], head_dim: int, length: int, *, partial: bool = False, interleaved: bool = False
    ) -> RopeSettings:
        """Read a config.json, old style (`rope_theta`, `rope_scaling`) or new (`rope_parameters`).

        `head_dim` and `length` (max_position_embeddings) are those of the model; `partial`: the family may rotate a
        part of the head. Raises ModelError for an unknown variant, a missing or senseless number, and for rotations
        that this decoder does not have.
        """
        given = data.get("rope_scaling") or data.get("rope_parameters") or {}
        if not isinstance(given, Mapping):
            raise ModelError(f"rope_scaling in config.json must be an object or null, not {shown(given)}.")
        kind = given.get("rope_type") or given.get("type") or "default"
        if any(isinstance(value, Mapping) for value in given.values()):
            raise ModelError("config.json sets rotary embeddings per layer type, which no supported family does.")
        if not isinstance(kind, str) or kind not in KINDS:
            raise ModelError(f"rope type {shown(kind)} is not supported; these are: {', '.join(KINDS)}.")
        # Pairs of the whole head, of which only some turn: another thing than a part of the head.
        rotated = head_dim if kind == "proportional" else _rotated(given, data, head_dim, partial)
        numbers = _Numbers(kind, given)
        theta = numbers.get("rope_theta", data.get("rope_theta") or _DEFAULT_THETA)
        if theta <= 1:
            raise ModelError(f"rope_theta must be larger than 1, not {theta}.")
        # Phi-style checkpoints write the original length beside the rope object; there it goes first.
        key = "original_max_position_embeddings"
        original = numbers.get(key, length) if data.get(key) is None else _Numbers(kind, data).get(key)
        if original < 1:
            raise ModelError(f"{key} of rope type {kind!r} must be at least 1, not {original}.")
        growth = numbers.get("llama_4_scaling_beta") if given.get("llama_4_scaling_beta") else 0.0
        base = cls(kind, rotated, theta, length, int(original), interleaved=interleaved, query_growth=growth)
        settings = replace(base, **_scaling(base, numbers))
        if settings.longest > MAX_POSITIONS:
            raise ModelError(
                f"factor {settings.factor:g} of rope type {kind!r} stretches the model to {settings.longest:,} "
                f"positions; at most {MAX_POSITIONS:,} are possible."
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


class _Numbers(Struct, frozen=True):
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
        if not _MIN <= value <= _MAX:
            raise ModelError(
                f"{key} of rope type {self.kind!r} is {shown(value)}, which makes no sense; it must lie between "
                f"{_MIN:g} and {_MAX:g}."
            )
        return float(value)

    def list(self, key: str, length: int) -> tuple[float, ...]:
        values = self.given.get(key)
        if not isinstance(values, list) or len(values) != length:
            raise ModelError(
                f"rope type {self.kind!r} needs {key!r} as a list of {length} numbers, one for each pair that is "
                f"rotated, not {shown(values)}."
            )
        return tuple(_Numbers(self.kind, {key: value}).get(key) for value in values)


def _rotated(given: Mapping[str, Any], data: Mapping[str, Any], head_dim: int, may_be_partial: bool) -> int:
    """Return how many values of a head are rotated."""
    partial = given.get("partial_rotary_factor") or data.get("partial_rotary_factor") or 1.0
    if partial == 1:
        return head_dim
    if not may_be_partial:
        raise ModelError(
            f"partial_rotary_factor {shown(partial)} is not supported; the whole head must be rotated (1.0)."
        )
    is_number = isinstance(partial, int | float) and not isinstance(partial, bool)
    rotated = int(head_dim * partial) if is_number and 0 < partial < 1 else 0
    if rotated < 2 or rotated % 2:
        raise ModelError(
            f"partial_rotary_factor {shown(partial)} of heads of {head_dim} values leaves no even number of at least 2 "
            "values to rotate in pairs."
        )
    return rotated


def _scaling(base: RopeSettings, numbers: _Numbers) -> dict[str, Any]:
    """Read the fields that the variant of `base` needs beside theta and lengths."""
    if base.kind == "default":
        return {}
    if base.kind == "longrope":  # its lists hold the divisors: checkpoints leave out what is the ratio of two lengths
        return _longrope(base, numbers.get("factor", base.length / base.original_length), numbers)
    if base.kind == "proportional":
        share = numbers.get("partial_rotary_factor", 1.0)
        if share > 1 or not (turned := int(share * base.head_dim // 2)):
            raise ModelError(
                f"partial_rotary_factor {share:g} of rope type 'proportional' turns no pair of a head of "
                f"{base.head_dim} values, or more than there are; it must lie between 0 and 1."
            )
        return {"turned": turned, "factor": numbers.get("factor", 1.0)}
    factor = numbers.get("factor")
    if base.kind == "yarn":
        return _yarn(factor, numbers)
    if base.kind != "llama3":
        return {"factor": factor}
    low, high = numbers.get("low_freq_factor"), numbers.get("high_freq_factor")
    if high <= low:
        raise ModelError(f"rope type 'llama3' needs high_freq_factor above low_freq_factor, not {high} and {low}.")
    return {"factor": factor, "low_freq_factor": low, "high_freq_factor": high}


def _yarn(factor: float, numbers: _Numbers) -> dict[str, Any]:
    given = numbers.given
    return {
        "factor": factor,
        "beta_fast": numbers.get("beta_fast", 32.0),
        "beta_slow": numbers.get("beta_slow", 1.0),
        "truncate": bool(given.get("truncate", True)),
        "attention_factor": _yarn_attention_factor(factor, numbers),
        "score_factor": _yarn_scale(factor, numbers.get("mscale_all_dim")) ** 2 if given.get("mscale_all_dim") else 1.0,
    }


def _longrope(base: RopeSettings, factor: float, numbers: _Numbers) -> dict[str, Any]:
    """LongRoPE: a divisor for each pair, of one list up to the original length, of another beyond; attention sharpened
    by sqrt(1 + ln(factor) / ln(original length)) where nothing else is stated, for both or for each (Phi-3.5-MoE)."""
    if base.original_length < 2:
        raise ModelError(
            "original_max_position_embeddings of rope type 'longrope' must be at least 2, not "
            f"{base.original_length}: attention is sharpened by its logarithm."
        )
    sharpened = math.sqrt(1 + math.log(factor) / math.log(base.original_length)) if factor > 1 else 1.0
    stated = numbers.get("attention_factor", sharpened)
    return {
        "factor": factor,
        "attention_factor": numbers.get("long_mscale", stated),
        "short_attention_factor": numbers.get("short_mscale", stated),
        "short_factors": numbers.list("short_factor", base.head_dim // 2),
        "long_factors": numbers.list("long_factor", base.head_dim // 2),
    }


def _yarn_attention_factor(factor: float, numbers: _Numbers) -> float:
    """Stated, or 0.1 · mscale · ln(factor) + 1 (YaRN, equation 22), or the quotient of two such if both are given."""
    given = numbers.given
    if given.get("attention_factor") is not None:
        return numbers.get("attention_factor")
    if given.get("mscale") and given.get("mscale_all_dim"):
        return _yarn_scale(factor, numbers.get("mscale")) / _yarn_scale(factor, numbers.get("mscale_all_dim"))
    return _yarn_scale(factor, 1.0)


def _yarn_scale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
