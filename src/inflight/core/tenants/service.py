"""Service: what tenants were given, as policies charge for it, by lane and tenant; and what of it engines tell each
other, so that a fair share holds over all of them.

Whoever stands before several engines asks each from time to time what it gave since it was last asked, and tells each
what the others gave (`Policy.take_service`, `Policy.served_elsewhere`). Differences travel, never totals: an engine
that is new holds nothing that is long past against anybody, and one that is lost takes with it what it did not tell
yet. Knows numbers and names.
"""

from __future__ import annotations

from collections.abc import Mapping

Service = Mapping[str, Mapping[str, float]]  # lane → tenant → weighted tokens
PERIOD_SECONDS = 0.25  # between two rounds of telling


def elsewhere(given: Mapping[str, Service], own: str) -> Service:
    """What all engines but this one gave. given: by their names."""
    total: dict[str, dict[str, float]] = {}
    for name, service in given.items():
        if name == own:
            continue
        for lane, tenants in service.items():
            sums = total.setdefault(lane, {})
            for tenant, work in tenants.items():
                sums[tenant] = sums.get(tenant, 0.0) + work
    return total
