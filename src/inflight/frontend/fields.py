"""Sampling settings from JSON: which fields there are, and what is said about those there are not.

Knows names only; `SamplingParams` knows what the values may be.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from inflight.core.types.sampling import SamplingParams

SAMPLING_FIELDS = tuple(item.name for item in fields(SamplingParams))
# No limit but the model's, a seed of the engine's, none, none.
_NONE_MEANS = ("max_tokens", "seed", "logprobs", "prompt_logprobs")


class UnknownField(ValueError):
    """A field that nobody would read; refused, because ignoring it would look like obeying it."""


def with_fields(defaults: SamplingParams, given: Mapping[str, Any], *, beside: tuple[str, ...] = ()) -> SamplingParams:
    """`defaults` with the given fields put in; `beside` names the other fields that the caller understands."""
    for name in given:
        if name not in SAMPLING_FIELDS and name not in beside:
            near = difflib.get_close_matches(name, (*SAMPLING_FIELDS, *beside), 1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Known are {', '.join((*beside, *SAMPLING_FIELDS))}."
            raise UnknownField(f"The field {name!r} is unknown.{hint}")
    # JSON clients send null for "not set", which is a value of its own only where the setting says so.
    chosen = {
        name: value
        for name, value in given.items()
        if name in SAMPLING_FIELDS and (value is not None or name in _NONE_MEANS)
    }
    return replace(defaults, **chosen)
