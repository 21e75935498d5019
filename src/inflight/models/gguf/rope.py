"""Read the rotation of a GGUF file's queries and keys, in the spelling of config.json.

Some tensors are settings of the rotation: factors of its frequencies. `models.rope` reads the result as it reads any
config.json.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from inflight.models.errors import ModelError
from inflight.models.gguf.keys import Config, Keys


def rope_of(keys: Keys) -> Config:
    """`rope_theta` and `rope_scaling` in the spelling that all families read."""
    theta = keys.number("rope.freq_base") or 10_000.0
    rotated = keys.find("rope.dimension_count")
    found: Config = {"rope_theta": theta}
    if rotated is not None and keys.head_dim > 0:
        found["partial_rotary_factor"] = rotated / keys.head_dim
    scaling = _scaling(keys, theta, rotated or keys.head_dim)
    return found if scaling is None else {**found, "rope_scaling": scaling}


def _scaling(keys: Keys, theta: float, rotated: int) -> Config | None:
    factors = keys.model.floats("rope_freqs.weight")
    if factors is not None and any(one != 1 for one in factors):
        return _llama3(keys, factors, theta, rotated)
    short, long = (keys.model.floats(f"rope_factors_{one}.weight") for one in ("short", "long"))
    original = keys.find("rope.scaling.original_context_length")
    if long is not None and short is not None:
        digits = [[float(f"{one:.7g}") for one in part] for part in (short, long)]
        scaling: Config = {"rope_type": "longrope", "short_factor": digits[0], "long_factor": digits[1]}
        return {**scaling, "original_max_position_embeddings": original}
    kind, factor = keys.text("rope.scaling.type"), keys.number("rope.scaling.factor")
    if kind in (None, "none") or factor in (None, 0, 1):
        return None
    scaling = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        return scaling | _yarn(keys, original)
    return scaling


def _yarn(keys: Keys, original: int | None) -> Config:
    multiplier = keys.number("rope.scaling.yarn_log_multiplier")  # a tenth of mscale_all_dim
    found: Config = {
        "original_max_position_embeddings": original,
        "beta_fast": keys.number("rope.scaling.yarn_beta_fast") or 32.0,
        "beta_slow": keys.number("rope.scaling.yarn_beta_slow") or 1.0,
        "attention_factor": keys.number("rope.scaling.attn_factor"),
    }
    return found if multiplier is None else {**found, "mscale": multiplier * 10, "mscale_all_dim": multiplier * 10}


def _llama3(keys: Keys, factors: Sequence[float], theta: float, rotated: int) -> Config:
    """Recover the four numbers from which the converter made the frequencies' divisors.

    low_freq_factor, high_freq_factor and the original length appear in them only as ratios, so 1 and 4, which all
    published models have, lose nothing; the length is the one whose divisors are these. Frequencies are then computed
    as of a config.json, which is exact, where the file's divisors are rounded.
    """
    factor = max(factors)
    for original in (8192, 4096, 2048, 16_384, 32_768, 65_536, 131_072):
        made = [_divisor(theta ** (2 * at / rotated), factor, original) for at in range(rotated // 2)]
        if len(made) == len(factors) and all(
            math.isclose(one, other, rel_tol=1e-4) for one, other in zip(made, factors, strict=True)
        ):
            return {
                "rope_type": "llama3",
                "factor": float(f"{factor:.7g}"),
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": original,
            }
    raise ModelError(
        f"rope_freqs.weight in {keys.model.path} divides the frequencies of the rotation by up to {factor:g}, and not "
        "as Llama 3 does, which is the one rule that is known for it; take another model."
    )


def _divisor(wavelength_over_2_pi: float, factor: float, original: int) -> float:
    wavelength = 2 * math.pi * wavelength_over_2_pi
    if wavelength < original / 4:
        return 1.0
    if wavelength > original:
        return factor
    smooth = (original / wavelength - 1) / 3
    return 1 / ((1 - smooth) / factor + smooth)
