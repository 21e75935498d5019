"""Layouts of a deployment: engines that compute whole prompts, engines that compute them in chunks beside decodes, and
engines for prompts and for answers apart, in the split that serves most; each with the rate that it keeps.

All are found alike, by trials with the same scheduler and the same requests; a closed form only orders the splits.
Engines for prompts compute chunks as wide as any that are proposed, since nobody decodes beside them; engines for
answers hold as many sequences as memory and the promised pace allow. Both have the machine of the others: engines of
another tensor-parallel degree exchange nothing. Knows trials; what they mean is `layout_verdict`.
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
from inflight.planning.simulation import Pools, Tiers, Trial
from inflight.planning.sizing import ROUGH, ROUGHLY, Candidate, Progress, TrialRunner, candidate_for, whole_engines
from inflight.planning.steady import mixed_step
from inflight.planning.traffic import Traffic
from inflight.simulate.disagg import AFTER, DisaggMode, Link

WHOLE, CHUNKED, APART = "whole prompts", "chunked", "prefill and decode apart"
MOST_ENGINES = 4  # of a split that is simulated; larger pools are multiples of it
SPLITS = 2  # that are simulated, of all up to that
PREFILL_ROWS = 64
TAILS = 256  # tokens of a step that may be ends of prompts, where answers are computed
EXPECTED = 0.75  # of the closed form
_TRIALS = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """name: of the kind. tiers: that its engines have. pools: None: each engine does both; then engines are simulated
    together behind a router."""

    name: str
    candidate: Candidate
    config: EngineConfig
    guess: float  # requests/s of each engine
    engines: int
    pools: Pools | None = None
    tiers: Tiers | None = None


@dataclass(frozen=True, slots=True)
class LayoutNeed:
    """held: at the highest rate that was found to keep the SLOs; None: none was. broken: at the lowest that does
    not."""

    layout: Layout
    held: Trial | None
    broken: Trial | None

    @property
    def rate(self) -> float:
        """Requests/s of each engine; 0: it keeps the SLOs at no rate."""
        return 0.0 if self.held is None else self.held.rate

    def engines(self, demand: Demand) -> tuple[int, ...] | None:
        """That the demand takes: replicas, or engines of each pool. Pools are made of whole engines, too."""
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
    progress: Progress = lambda sentence: None,
) -> list[LayoutNeed]:
    """Of each layout on the machine of `best`; of tiers each with what serves most of engines that do both. link:
    between engines; None: nothing is known of it, and pools are not tried."""
    found = [layout_need(runner, one, progress) for one in together(runner, best)]
    if tiers:
        usual = max(found, key=lambda one: one.rate)
        guess = usual.rate or usual.layout.guess
        found += [layout_need(runner, replace(usual.layout, tiers=one, guess=guess), progress) for one in tiers]
    if link is not None:
        for disagg_mode in disagg_modes:
            found.append(best_need(runner, apart(runner, best, link, disagg_mode), progress))
    return found


def together(runner: TrialRunner, best: Candidate, engines: int | None = None) -> list[Layout]:
    """Both ways for engines to do both. engines: that are simulated together; None: as many as the search has."""
    found = []
    for name, strategy in ((WHOLE, "continuous"), (CHUNKED, "chunked")):
        candidate = best
        if best.config.strategy != strategy:
            overrides = replace(runner.question.overrides, strategy=strategy)
            candidate = candidate_for(runner.question, runner.traffic, best.machine, overrides)
        number = engines or candidate.pooled
        found.append(Layout(name, candidate, candidate.config, candidate.rate or candidate.guess, number))
    return found


def apart(
    runner: TrialRunner,
    best: Candidate,
    link: Link,
    disagg_mode: DisaggMode = AFTER,
    engines: int | None = None,
) -> list[Layout]:
    """The splits that look best. engines: in all; None: up to MOST_ENGINES."""
    machine, traffic = best.machine, runner.traffic
    prompts, answers = pool_configs(runner, machine)
    prefill, decode = pool_rates(machine, traffic, prompts, answers)
    splits = []
    for total in range(2, MOST_ENGINES + 1) if engines is None else (engines,):
        for first in range(1, total):
            if engines is None and math.gcd(first, total) > 1:
                continue
            guess = EXPECTED * min(first * prefill, (total - first) * decode) / total
            pools = Pools(first, total - first, answers, link, disagg_mode)
            splits.append(Layout(APART, best, prompts, guess, total, pools))
    return sorted(splits, key=lambda one: -one.guess)[:SPLITS]


def pool_configs(runner: TrialRunner, machine: Machine) -> tuple[EngineConfig, EngineConfig]:
    """Of engines for prompts, and of engines for answers."""
    rows = rows_for_decodes(machine, runner.traffic, runner.question.slos)
    scheduling = SchedulingSettings.of(strategy="chunked").ending_early(early_end(machine))
    prompts = EngineConfig(max_num_seqs=PREFILL_ROWS, max_num_batched_tokens=BUDGETS[-1], scheduling=scheduling)
    answers = EngineConfig(max_num_seqs=rows, max_num_batched_tokens=rows + TAILS, scheduling=scheduling)
    return prompts, answers


def pool_rates(machine: Machine, traffic: Traffic, prompts: EngineConfig, answers: EngineConfig) -> tuple[float, float]:
    """Requests/s of an engine for prompts and of one for answers, if nothing ever queued."""
    budget = prompts.max_num_batched_tokens or WIDEST_STEP
    width = min(budget, max(1, round(traffic.input_mean)))
    seconds = machine.model.seconds(mixed_step(traffic, 0, width)) * traffic.input_mean / width
    step = machine.model.seconds(mixed_step(traffic, answers.max_num_seqs, 0))
    return 1 / seconds, answers.max_num_seqs / (traffic.output_mean * step)


def best_need(runner: TrialRunner, layouts: Sequence[Layout], progress: Progress) -> LayoutNeed:
    """Of those that keeps most. One that does not keep what another does is looked at no further."""
    found: list[LayoutNeed] = []
    for layout in layouts:
        worth = max((one.rate for one in found), default=0.0)
        found.append(layout_need(runner, layout, progress, worth=worth))
    return max(found, key=lambda need: need.rate)


def layout_need(
    runner: TrialRunner, layout: Layout, progress: Progress, *, worth: float = 0.0, ceiling: float = math.inf
) -> LayoutNeed:
    """worth: a rate below which it is of no interest. ceiling: one above which nothing is to be found."""
    progress(f"Layout: {layout.name}{split_of(layout)}")
    candidate = replace(layout.candidate, guess=layout.guess)

    def trial(rate: float) -> Trial:
        return runner.run(
            candidate,
            rate,
            replicas=layout.engines,
            config=layout.config,
            reads=ROUGHLY,
            pools=layout.pools,
            tiers=layout.tiers,
        )

    found = find_capacity(trial, max(layout.guess, worth), ROUGH / 2, _TRIALS, worth=worth, ceiling=ceiling)
    return LayoutNeed(layout, found.held, found.broken)


def split_of(layout: Layout) -> str:
    pools = layout.pools
    return "" if pools is None else f", {pools.prefill} to {pools.decode}"
