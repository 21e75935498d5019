"""How a model wants to be sampled when nobody says: its generation_config.json, as its authors ship it.

Knows the names; what the values may be, `SamplingParams` knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight.core.types.sampling import InvalidSampling, SamplingParams

_TAKEN = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def sampling_defaults(generation: Mapping[str, Any] | None) -> SamplingParams:
    """generation: the file's content. `do_sample: false` means the likeliest token; a value out of range is left out,
    because a model must not fail to load for how it might be sampled."""
    if not generation:
        return SamplingParams()
    if generation.get("do_sample") is False:
        return SamplingParams(temperature=0.0)
    given: dict[str, Any] = {}
    for name in _TAKEN:
        value = generation.get(name)
        if value is None:
            continue
        try:
            SamplingParams(**{name: value})
        except InvalidSampling:
            continue
        given[name] = value
    return SamplingParams(**given)
