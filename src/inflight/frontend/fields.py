"""Read sampling parameters and scheduling fields (lane, tenant, priority, SLO, cache salt) of a request from JSON.

`SamplingParams` checks the values of sampling parameters; the engine checks lanes and priorities.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypedDict, cast

from inflight.core.types.request import SLO
from inflight.core.types.sampling import Adapter, SamplingParams
from inflight.counted import MAX_MILLISECONDS, quoted, shortened

SAMPLING_FIELDS = tuple(item.name for item in fields(SamplingParams))
# No limit but the model's, a seed of the engine's, none, none.
_NONE_MEANS = ("max_tokens", "seed", "logprobs", "prompt_logprobs")


class UnknownField(ValueError):
    """Raised for an unknown field, which must not be ignored silently."""


def with_fields(defaults: SamplingParams, given: Mapping[str, Any], *, beside: tuple[str, ...] = ()) -> SamplingParams:
    """Return the defaults, replaced by the given fields. beside: other fields that the caller reads."""
    for name in given:
        if name not in SAMPLING_FIELDS and name not in beside:
            import difflib  # imported here: only needed for errors

            near = difflib.get_close_matches(name, (*SAMPLING_FIELDS, *beside), 1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Known are {', '.join((*beside, *SAMPLING_FIELDS))}."
            raise UnknownField(f"The field {shortened(name)!r} is unknown.{hint}")
    # JSON clients send null for "not set", which is a value of its own only where the setting says so.
    chosen = {
        name: value
        for name, value in given.items()
        if name in SAMPLING_FIELDS and (value is not None or name in _NONE_MEANS)
    }
    return replace(defaults, **chosen)


_IDS = {"session_id": "session", "program_id": "program"}  # as the HTTP API names them
PLACEMENT_FIELDS = ("cache_salt", "lane", "tenant", "priority", "slo", "session", "program", *_IDS)


class Placement(TypedDict, total=False):
    """Scheduling fields of a `Request`."""

    cache_salt: str
    lane: str
    tenant: str
    priority: int
    slo: SLO
    session: str
    program: str


class RequestFields(Placement, total=False):
    """Fields of a `Request` that those who make one choose beside its prompt and parameters."""

    adapter: Adapter | None
    shown_token_ids: tuple[int, ...]
    call_marks: tuple[tuple[int, ...], ...]


class PlacementError(ValueError):
    """Raised for a scheduling field of a wrong type or value."""


def placement(data: Mapping[str, Any]) -> Placement:
    """Return keyword arguments for `PromptEncoder.request`; null means "not set". Raises PlacementError."""
    given = {name: data[name] for name in PLACEMENT_FIELDS if data.get(name) is not None}
    for name in ("cache_salt", "lane", "tenant", "session", "program", *_IDS):
        if name in given and not isinstance(given[name], str):
            raise PlacementError(f"{name} is {quoted(given[name])}; give text.")
    given = {_IDS.get(name, name): value for name, value in given.items()}
    priority = given.get("priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > 2**31:
        raise PlacementError(f"priority is {quoted(priority)}; give a whole number, the lower the sooner.")
    if "slo" in given:
        given["slo"] = _slo(given["slo"])
    return cast(Placement, given)


_TARGETS = ("ttft_ms", "itl_ms", "tpot_ms")  # in the order of `SLO`


def _slo(value: Any) -> SLO:
    if not isinstance(value, Mapping) or not set(value) <= set(_TARGETS):
        raise PlacementError(f'slo is {quoted(value)}; give an object with any of "ttft_ms", "itl_ms" and "tpot_ms".')
    for name, number in value.items():
        is_number = not isinstance(number, bool) and isinstance(number, int | float)
        if number is not None and not (is_number and 0 < number <= MAX_MILLISECONDS):
            raise PlacementError(
                f"slo.{name} is {quoted(number)}; give milliseconds above 0, up to {MAX_MILLISECONDS:g}."
            )
    return SLO(*(value[name] / 1e3 if value.get(name) is not None else None for name in _TARGETS))
