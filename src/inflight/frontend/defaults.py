"""Read a model's default sampling parameters from its generation_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inflight.core.types.sampling import InvalidSampling, SamplingParams

_TAKEN = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def sampling_defaults(generation: Mapping[str, Any] | None) -> SamplingParams:
    """Return the default sampling parameters of the file's content; `do_sample: false` means temperature 0.

    A value out of range is ignored: it must not keep a model from loading.
    """
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


def overridden(defaults: SamplingParams, given: Mapping[str, Any]) -> SamplingParams:
    """Return the defaults with other values. Raises InvalidSampling for an unknown name or a value out of range."""
    known = (*_TAKEN, "presence_penalty", "frequency_penalty")
    values = {name: value for name, value in given.items() if name != "do_sample"}
    if unknown := [name for name in values if name not in known]:
        raise InvalidSampling(f"it has {unknown[0]!r}; known are {', '.join(known)} and do_sample.")
    greedy = {"temperature": 0.0} if given.get("do_sample") is False else {}
    return replace(defaults, **{**greedy, **values})
