"""Rank the plans that were found to meet the SLOs, the cheapest first: machines, strategies, layouts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from inflight.planning.candidate import Candidate
from inflight.planning.demand import Demand
from inflight.planning.engine_config import EngineConfig
from inflight.planning.layouts import DISAGGREGATED, MIN_GAIN, MIXED, LayoutNeed, takes_clearly_less
from inflight.planning.question import Question


class RankedPlan(Struct, frozen=True):
    """A plan that meets the SLOs. engines: replicas, or those of each pool. per_hour: US dollars; None: not known.
    is_chosen: whether it is the one that the rest of the answer is of. rate: requests/s that so many GPUs serve, where
    that is asked; None: all serve the demand. settings: options of each engine, with pools of each prefill engine.
    decode_settings: of each decode engine. asked_by: options with which the same question is answered by this plan; "":
    there are none."""

    name: str
    engines: tuple[int, ...]
    gpus: int
    per_hour: float | None
    is_chosen: bool = False
    rate: float | None = None
    settings: dict[str, str | int | float | bool] = {}
    decode_settings: dict[str, str | int | float | bool] = {}
    asked_by: str = ""

    @property
    def key(self) -> tuple[float, float, int, bool]:
        """Return what plans are sorted by: unknown prices come last, and the chosen plan before its equals."""
        return (
            -(self.rate or 0.0),
            math.inf if self.per_hour is None else self.per_hour,
            self.gpus,
            not self.is_chosen,
        )


def rank(candidate: Candidate, question: Question) -> float:
    """Return what the better of two machines has less of: GPUs, or with so many the requests/s that they serve, below
    0."""
    engines = question.engines(candidate.machine)
    return candidate.gpus(question.demand) if engines is None else -candidate.rate * engines


def ranked(
    chosen: Candidate, replicas: int, others: Iterable[Candidate], layouts: Iterable[LayoutNeed], demand: Demand
) -> list[RankedPlan]:
    """Return the plans, the cheapest first; the chosen one, where no other is clearly cheaper.

    Args:
        chosen, replicas: The plan whose settings the answer has.
        others: Other machines and strategies; those that meet the SLOs at no rate are left out, as equal ones are.
        layouts: Other layouts on the chosen machine.
        demand: That each plan serves.
    """
    found = [_of_candidate(chosen, replicas, is_chosen=True)]
    for one in (*_of_layouts(layouts, demand, chosen), *_of_candidates(others, demand, chosen)):
        if one.name not in {other.name for other in found}:
            found.append(one)
    own = found[0]
    found.sort(key=lambda one: one.key)
    return found if _is_clearly_cheaper(found[0], own) else _chosen_first(found)


def ranked_on(question: Question, chosen: Candidate, others: Iterable[Candidate]) -> list[RankedPlan]:
    """Return the plans on so many GPUs, that which serves the most first; the chosen one, where no other serves clearly
    more. question: whose demand is what the chosen one serves."""
    served = question.demand.rate
    found = [_of_candidate(chosen, question.engines(chosen.machine) or 0, is_chosen=True, rate=served)]
    for one in others:
        if one.rate and (engines := question.engines(one.machine)):
            found.append(_of_candidate(one, engines, rate=one.rate * engines, asked_by=_asked_by(one, chosen)))
    found = list({one.name: one for one in reversed(found)}.values())  # the chosen one stands first
    found.sort(key=lambda one: one.key)
    return found if (found[0].rate or 0.0) > (1 + MIN_GAIN) * served else _chosen_first(found)


def _is_clearly_cheaper(one: RankedPlan, other: RankedPlan) -> bool:
    """Whether a plan takes less by more than noise: US dollars, or GPUs where prices are not known."""
    if one.per_hour is None or other.per_hour is None:
        return takes_clearly_less(one.gpus, other.gpus)
    return takes_clearly_less(one.per_hour, other.per_hour)


def _chosen_first(plans: Sequence[RankedPlan]) -> list[RankedPlan]:
    return sorted(plans, key=lambda one: not one.is_chosen)


def _of_candidates(others: Iterable[Candidate], demand: Demand, chosen: Candidate) -> Iterator[RankedPlan]:
    for one in others:
        if one.rate:
            yield _of_candidate(one, one.replicas(demand), asked_by=_asked_by(one, chosen))


def _of_candidate(
    candidate: Candidate, replicas: int, *, is_chosen: bool = False, rate: float | None = None, asked_by: str = ""
) -> RankedPlan:
    name = f"{candidate.machine.name}, {candidate.config.strategy}"
    gpus, price = replicas * candidate.machine.gpus, _price(candidate, replicas)
    return RankedPlan(name, (replicas,), gpus, price, is_chosen, rate, _settings(candidate.config), asked_by=asked_by)


def _of_layouts(needs: Iterable[LayoutNeed], demand: Demand, chosen: Candidate) -> Iterator[RankedPlan]:
    for need in needs:
        layout, engines, gpus = need.layout, need.engines(demand), need.gpus(demand)
        if engines is None or gpus is None:
            continue
        kind = {DISAGGREGATED: "disaggregated", MIXED: "mixed"}.get(layout.name, layout.config.strategy)
        tier = "" if layout.tiers is None else ", with a folder" if layout.tiers.folder else ", with host memory"
        yield RankedPlan(
            f"{layout.candidate.machine.name}, {kind}{tier}",
            engines,
            gpus,
            _price(layout.candidate, sum(engines)),
            settings=_settings(layout.config),
            decode_settings={} if layout.pools is None else _settings(layout.pools.config),
            asked_by="" if layout.pools or layout.tiers else _asked_by(layout.candidate, chosen),
        )


def _settings(config: EngineConfig) -> dict[str, str | int | float | bool]:
    return {name: one.value for name, one in config.options().items()}


def _asked_by(candidate: Candidate, chosen: Candidate) -> str:
    """Return the options by which a candidate differs from the chosen one."""
    divided = candidate.machine.parallelism
    parts = [f"--strategy {candidate.config.strategy}"] if candidate.config.strategy != chosen.config.strategy else []
    if divided != chosen.machine.parallelism:
        parts += [f"--tensor-parallel {divided.tensor}"]
        parts += [f"--data-parallel {divided.data_attention}"] if divided.data_attention > 1 else []
        parts += ["--expert-parallel"] if divided.expert > 1 else []
        parts += [f"--pipeline-parallel {divided.pipeline}"] if divided.pipeline > 1 else []
    return " ".join(parts)


def _price(candidate: Candidate, engines: int) -> float | None:
    price = candidate.machine.price_per_hour
    return None if price is None else price * engines
