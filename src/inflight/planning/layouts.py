"""Layouts of a deployment: replicas that compute whole prompts, replicas with chunked prefill, and disaggregated
prefill and decode in the best split; each with the rate that it meets the SLOs at.

All are found by trials with the same scheduler and the same requests; a closed form only orders the splits. Prefill
engines compute chunks as wide as any that are proposed, since no sequence decodes beside them; decode engines hold as
many sequences as memory and the SLOs between tokens allow. Both have the same machine: engines of different
tensor-parallel degrees exchange nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from inflight.config.scheduling import SchedulingSettings
from inflight.planning.demand import Demand
from inflight.planning.engine_config import EngineConfig
from inflight.planning.machine import WIDEST_STEP, Machine
from inflight.planning.proposal import BUDGETS, early_end, rows_for_decodes
from inflight.planning.search import find_capacity
from inflight.planning.simulation import Pools, Tiers, Topology, Trial
from inflight.planning.sizing import (
    ROUGH,
    ROUGHLY,
    Candidate,
    Progress,
    TrialRunner,
    candidate_for,
    quiet,
    whole_engines,
)
from inflight.planning.steady import mixed_step
from inflight.planning.traffic import Traffic
from inflight.simulate.disagg import AFTER, DisaggMode, Link

WHOLE, CHUNKED, DISAGGREGATED = "whole prompts", "chunked", "prefill and decode apart"  # as in JSON
MAX_ENGINES = 4  # of a split that is simulated; larger pools are multiples of it
SPLITS = 2  # that are simulated, of all up to that
PREFILL_ROWS = 64
TAILS = 256  # tokens of a step that may be ends of prompts, on decode engines
EXPECTED = 0.75  # of the closed form
_TRIALS = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """name: of the kind. guess: requests/s of each engine. engines: that are simulated. pools: None: each engine does
    both. tiers: of its engines."""

    name: str
    candidate: Candidate
    config: EngineConfig
    guess: float
    engines: int
    pools: Pools | None = None
    tiers: Tiers | None = None

    @property
    def split(self) -> str:
        return "" if self.pools is None else f"{self.pools.prefill} to {self.pools.decode}"


@dataclass(frozen=True, slots=True)
class LayoutNeed:
    """met: at the highest rate found to meet the SLOs; None: none was. missed: at the lowest that does not."""

    layout: Layout
    met: Trial | None
    missed: Trial | None

    @property
    def rate(self) -> float:
        """Return the requests/s of each engine; 0: it meets the SLOs at no rate."""
        return 0.0 if self.met is None else self.met.rate

    @property
    def cached(self) -> float:
        """Return the share of the prompts' tokens that was found cached."""
        return 0.0 if self.met is None else self.met.cached

    def engines(self, demand: Demand) -> tuple[int, ...] | None:
        """Return the engines that serve the demand: replicas, or whole engines of each pool."""
        if not self.rate:
            return None
        pools = self.layout.pools
        if pools is None:
            return (whole_engines(demand.rate / self.rate),)
        units = demand.rate / (self.rate * (pools.prefill + pools.decode))
        return whole_engines(units * pools.prefill), whole_engines(units * pools.decode)

    def gpus(self, demand: Demand) -> int | None:
        engines = self.engines(demand)
        return None if engines is None else sum(engines) * self.layout.candidate.machine.gpus


def layout_needs(
    runner: TrialRunner,
    best: Candidate,
    link: Link | None,
    disagg_modes: Sequence[DisaggMode] = (AFTER,),
    tiers: Sequence[Tiers] = (),
    progress: Progress = quiet,
) -> list[LayoutNeed]:
    """Find each layout's rate on the machine of `best`; with tiers, of the better layout without pools. link: between
    engines; None: not known, and pools are not tried."""
    found = [layout_need(runner, one, progress) for one in colocated(runner, best)]
    if tiers:
        usual = max(found, key=lambda one: one.rate)
        guess = usual.rate or usual.layout.guess
        found += [layout_need(runner, replace(usual.layout, tiers=one, guess=guess), progress) for one in tiers]
    if link is not None:
        for mode in disagg_modes:
            found.append(best_need(runner, disaggregated(runner, best, link, mode), progress))
    return found


def colocated(runner: TrialRunner, best: Candidate, engines: int | None = None) -> list[Layout]:
    """Return the layouts without pools. engines: simulated together; None: as many as the search has."""
    found = []
    for name, strategy in ((WHOLE, "continuous"), (CHUNKED, "chunked")):
        candidate = best
        if best.config.strategy != strategy:
            overrides = replace(runner.question.overrides, strategy=strategy)
            candidate = candidate_for(runner.question, runner.traffic, best.machine, overrides)
        guess = candidate.rate or candidate.guess
        found.append(Layout(name, candidate, candidate.config, guess, engines or candidate.pooled))
    return found


def disaggregated(
    runner: TrialRunner, best: Candidate, link: Link, disagg_mode: DisaggMode = AFTER, engines: int | None = None
) -> list[Layout]:
    """Return the splits that look best. engines: in all; None: up to MAX_ENGINES."""
    machine, traffic = best.machine, runner.traffic
    of_prefill, of_decode = pool_configs(runner, machine)
    prefill, decode = pool_rates(machine, traffic, of_prefill, of_decode)
    splits = []
    for total in range(2, MAX_ENGINES + 1) if engines is None else (engines,):
        for first in range(1, total):
            if engines is None and math.gcd(first, total) > 1:
                continue
            guess = EXPECTED * min(first * prefill, (total - first) * decode) / total
            pools = Pools(first, total - first, of_decode, link, disagg_mode)
            splits.append(Layout(DISAGGREGATED, best, of_prefill, guess, total, pools))
    return sorted(splits, key=lambda one: -one.guess)[:SPLITS]


def pool_configs(runner: TrialRunner, machine: Machine) -> tuple[EngineConfig, EngineConfig]:
    """Return the settings of prefill and of decode engines."""
    rows = rows_for_decodes(machine, runner.traffic, runner.question.slos)
    scheduling = SchedulingSettings.of(strategy="chunked").ending_early(early_end(machine))
    prefill = EngineConfig(max_num_seqs=PREFILL_ROWS, max_num_batched_tokens=BUDGETS[-1], scheduling=scheduling)
    decode = EngineConfig(max_num_seqs=rows, max_num_batched_tokens=rows + TAILS, scheduling=scheduling)
    return prefill, decode


def pool_rates(machine: Machine, traffic: Traffic, prefill: EngineConfig, decode: EngineConfig) -> tuple[float, float]:
    """Return the requests/s of a prefill and of a decode engine, if nothing ever queued."""
    budget = prefill.max_num_batched_tokens or WIDEST_STEP
    width = min(budget, max(1, round(traffic.input_mean)))
    seconds = machine.model.seconds(mixed_step(traffic, 0, width)) * traffic.input_mean / width
    step = machine.model.seconds(mixed_step(traffic, decode.max_num_seqs, 0))
    return 1 / seconds, decode.max_num_seqs / (traffic.output_mean * step)


def best_need(runner: TrialRunner, layouts: Sequence[Layout], progress: Progress) -> LayoutNeed:
    """Return the layout with the highest rate. The search of one ends when it misses the SLOs where another met
    them."""
    found: list[LayoutNeed] = []
    for layout in layouts:
        worth = max((one.rate for one in found), default=0.0)
        found.append(layout_need(runner, layout, progress, worth=worth))
    return max(found, key=lambda need: need.rate)


def layout_need(
    runner: TrialRunner, layout: Layout, progress: Progress, *, worth: float = 0.0, ceiling: float = math.inf
) -> LayoutNeed:
    """Find a layout's rate. worth: a rate below which it is of no interest. ceiling: of the search."""
    progress(f"Layout: {layout.name}{layout.split and ', '}{layout.split}")
    candidate = replace(layout.candidate, guess=layout.guess)
    topology = Topology(layout.engines, pools=layout.pools, tiers=layout.tiers)

    def trial(rate: float) -> Trial:
        return runner.run(candidate, rate, config=layout.config, reads=ROUGHLY, topology=topology)

    found = find_capacity(trial, max(layout.guess, worth), ROUGH / 2, _TRIALS, worth=worth, ceiling=ceiling)
    return LayoutNeed(layout, found.met, found.missed)
