"""Rank the plans that were found to meet the SLOs, the cheapest first: machines, strategies, layouts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from msgspec import Struct

from inflight.planning.demand import Demand
from inflight.planning.layouts import DISAGGREGATED, MIXED, LayoutNeed
from inflight.planning.sizing import Candidate


class RankedPlan(Struct, frozen=True):
    """A plan that meets the SLOs. engines: replicas, or those of each pool. per_hour: US dollars; None: not known.
    is_chosen: whether it is the one whose settings the answer has. rate: requests/s that so many GPUs serve, where that
    is asked; None: all serve the demand."""

    name: str
    engines: tuple[int, ...]
    gpus: int
    per_hour: float | None
    is_chosen: bool = False
    rate: float | None = None

    @property
    def key(self) -> tuple[float, float, int, bool]:
        """Return what plans are sorted by: unknown prices come last, and the chosen plan before its equals."""
        return (
            -(self.rate or 0.0),
            math.inf if self.per_hour is None else self.per_hour,
            self.gpus,
            not self.is_chosen,
        )


def ranked(
    chosen: Candidate, replicas: int, others: Iterable[Candidate], layouts: Iterable[LayoutNeed], demand: Demand
) -> list[RankedPlan]:
    """Return the plans, the cheapest first.

    Args:
        chosen, replicas: The plan whose settings the answer has.
        others: Other machines and strategies; those that meet the SLOs at no rate are left out, as equal ones are.
        layouts: Other layouts on the chosen machine.
        demand: That each plan serves.
    """
    found = [_of_candidate(chosen, replicas, is_chosen=True)]
    for one in (*_of_layouts(layouts, demand), *_of_candidates(others, demand)):
        if one.name not in {other.name for other in found}:
            found.append(one)
    return sorted(found, key=lambda one: one.key)


def ranked_on(gpus: int, chosen: Candidate, served: float, others: Iterable[Candidate]) -> list[RankedPlan]:
    """Return the plans on so many GPUs, that which serves the most first. served: requests/s of the chosen one."""
    found = [_of_candidate(chosen, gpus // chosen.machine.gpus, is_chosen=True, rate=served)]
    for one in others:
        engines = gpus // one.machine.gpus
        if one.rate and engines:
            found.append(_of_candidate(one, engines, rate=one.rate * engines))
    found = list({one.name: one for one in reversed(found)}.values())  # the chosen one stands first
    return sorted(found, key=lambda one: one.key)


def _of_candidates(others: Iterable[Candidate], demand: Demand) -> Iterator[RankedPlan]:
    for one in others:
        if one.rate:
            yield _of_candidate(one, one.replicas(demand))


def _of_candidate(one: Candidate, replicas: int, *, is_chosen: bool = False, rate: float | None = None) -> RankedPlan:
    name = f"{one.machine.name}, {one.config.strategy}"
    return RankedPlan(name, (replicas,), replicas * one.machine.gpus, _price(one, replicas), is_chosen, rate)


def _of_layouts(needs: Iterable[LayoutNeed], demand: Demand) -> Iterator[RankedPlan]:
    for need in needs:
        layout, engines, gpus = need.layout, need.engines(demand), need.gpus(demand)
        if engines is None or gpus is None:
            continue
        kind = {DISAGGREGATED: "disaggregated", MIXED: "mixed"}.get(layout.name, layout.config.strategy)
        tier = "" if layout.tiers is None else ", with a folder" if layout.tiers.folder else ", with host memory"
        name = f"{layout.candidate.machine.name}, {kind}{tier}"
        yield RankedPlan(name, engines, gpus, _price(layout.candidate, sum(engines)))


def _price(one: Candidate, engines: int) -> float | None:
    price = one.machine.price_per_hour
    return None if price is None else price * engines
