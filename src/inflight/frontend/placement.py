"""Where a request belongs: lane, tenant, priority, targets and cache salt, read from JSON.

Knows the fields and their types; which lanes there are, and whether a priority means anything, the engine's door knows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from inflight.core.types.request import SLO

PLACEMENT_FIELDS = ("cache_salt", "lane", "tenant", "priority", "slo")


class PlacementError(ValueError):
    """One of the fields does not hold what it must."""


def placement(data: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments for `PromptEncoder.request`; null means "not set"."""
    given = {name: data[name] for name in PLACEMENT_FIELDS if data.get(name) is not None}
    for name in ("cache_salt", "lane", "tenant"):
        if name in given and not isinstance(given[name], str):
            raise PlacementError(f"{name} is {given[name]!r}; give text.")
    priority = given.get("priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > 2**31:
        raise PlacementError(f"priority is {priority!r}; give a whole number, the lower the sooner.")
    if "slo" in given:
        given["slo"] = _slo(given["slo"])
    return given


def _slo(value: Any) -> SLO:
    if not isinstance(value, Mapping) or not set(value) <= {"ttft_ms", "itl_ms"}:
        raise PlacementError(f'slo is {value!r}; give an object with "ttft_ms", "itl_ms" or both.')
    for name, number in value.items():
        is_number = not isinstance(number, bool) and isinstance(number, int | float)
        if number is not None and not (is_number and math.isfinite(number) and number > 0):
            raise PlacementError(f"slo.{name} is {number!r}; give milliseconds above 0.")
    return SLO(*(value[name] / 1e3 if value.get(name) is not None else None for name in ("ttft_ms", "itl_ms")))
