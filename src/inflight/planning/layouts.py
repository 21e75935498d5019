"""Layouts of a deployment: replicas that compute whole prompts, replicas with chunked prefill, and disaggregated
prefill and decode in the best split; each with the rate that it meets the SLOs at, and which of them pays.

All are found by trials with the same scheduler and the same requests; a closed form only orders the splits. Prefill
engines compute chunks as wide as any that are proposed, since no sequence decodes beside them; decode engines hold as
many sequences as memory and the SLOs between tokens allow. Both have the same machine: engines of different
tensor-parallel degrees exchange nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec import Struct

from inflight.config.scheduling import SchedulingSettings
from inflight.planning.candidate import Candidate, whole_engines
from inflight.planning.demand import Demand
from inflight.planning.engine_config import EngineConfig
from inflight.planning.machine import WIDEST_STEP, Machine
from inflight.planning.planned_load import confirmed_rate, thorough
from inflight.planning.proposal import budgets_of, early_end, rows_for_decodes
from inflight.planning.rendering import sentence
from inflight.planning.search import find_capacity
from inflight.planning.simulation import Pools, Tiers, Topology, Trial
from inflight.planning.sizing import ROUGH, candidate_for
from inflight.planning.steady import mixed_step
from inflight.planning.traffic import Traffic
from inflight.planning.trial_runner import ROUGHLY, TrialRunner
from inflight.simulate.disagg import AFTER, DisaggMode, Link

WHOLE, CHUNKED, DISAGGREGATED = "whole prompts", "chunked", "prefill and decode apart"  # as in JSON
MIXED = "mixed chunk sizes"
MAX_ENGINES = 4  # of a split that is simulated; larger pools are multiples of it
SPLITS = 2  # that are simulated, of all up to that
PREFILL_ROWS = 64
TAILS = 256  # tokens of a step that may be ends of prompts, on decode engines
EXPECTED_SHARE = 0.75  # of the closed form
_LAYOUT_TRIALS = 8
MIN_GAIN = 0.1  # of GPUs or of rate: less is noise, since a rate varies by 3 to 4 % with the seed, and two by more
ROUNDING = 1e-9  # share of a number that floating point may add
LONG_TRANSFER = 0.2  # of an SLO on TTFT that a transfer takes
UNEVEN_BUSY = 0.25  # between the shares of time that the pools are busy


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
    """met: at the highest rate found to meet the SLOs; None: none was. missed: at the lowest that does not.
    is_confirmed: whether it is the answer, whose long trials need no confirmation."""

    layout: Layout
    met: Trial | None
    missed: Trial | None
    is_confirmed: bool = False

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
) -> list[LayoutNeed]:
    """Find each layout's rate on the machine of `best`; with tiers, of the better layout without pools. link: between
    engines; None: not known, and pools are not tried."""
    found = [_colocated_need(runner, one, best) for one in colocated(runner, best)]
    if tiers:
        usual = max(found, key=lambda one: one.rate)
        guess = usual.rate or usual.layout.guess
        found += [layout_need(runner, replace(usual.layout, tiers=one, guess=guess)) for one in tiers]
    if link is not None:
        for mode in disagg_modes:
            found.append(best_need(runner, disaggregated(runner, best, link, mode)))
    return found


def _colocated_need(runner: TrialRunner, layout: Layout, best: Candidate) -> LayoutNeed:
    """Find the rate of a layout without pools. That of the answer is known."""
    if layout.candidate is best and best.capacity.met is not None and runner.question.takes_long_trials:
        return LayoutNeed(layout, best.capacity.met, best.capacity.missed, is_confirmed=True)
    return layout_need(runner, layout)


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
    found = []
    for first, second in splits(engines):
        guess = EXPECTED_SHARE * min(first * prefill, second * decode) / (first + second)
        pools = Pools(first, second, of_decode, link, disagg_mode)
        found.append(Layout(DISAGGREGATED, best, of_prefill, guess, first + second, pools))
    return sorted(found, key=lambda one: -one.guess)[:SPLITS]


def splits(engines: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield prefill and decode engines. engines: in all; None: every ratio of up to MAX_ENGINES once."""
    for total in range(2, MAX_ENGINES + 1) if engines is None else (engines,):
        for first in range(1, total):
            if engines is not None or math.gcd(first, total) == 1:
                yield first, total - first


def pool_configs(runner: TrialRunner, machine: Machine) -> tuple[EngineConfig, EngineConfig]:
    """Return the settings of prefill and of decode engines."""
    rows = rows_for_decodes(machine, runner.traffic, runner.question.slos)
    scheduling = SchedulingSettings.of(strategy="chunked").ending_early(early_end(machine))
    prefill = EngineConfig(
        max_num_seqs=PREFILL_ROWS, max_num_batched_tokens=budgets_of(machine)[-1], scheduling=scheduling
    )
    decode = EngineConfig(max_num_seqs=rows, max_num_batched_tokens=rows + TAILS, scheduling=scheduling)
    return prefill, decode


def pool_rates(machine: Machine, traffic: Traffic, prefill: EngineConfig, decode: EngineConfig) -> tuple[float, float]:
    """Return the requests/s of a prefill and of a decode engine, if nothing ever queued."""
    step = machine.model.seconds(mixed_step(traffic, decode.max_num_seqs, 0))
    return prefill_rate(machine, traffic, prefill), decode.max_num_seqs / (traffic.output_mean * step)


def prefill_rate(machine: Machine, traffic: Traffic, prefill: EngineConfig) -> float:
    """Return the requests/s of a prefill engine, if nothing ever queued."""
    budget = prefill.max_num_batched_tokens or WIDEST_STEP
    width = min(budget, max(1, round(traffic.input_mean)))
    return width / (machine.model.seconds(mixed_step(traffic, 0, width)) * traffic.input_mean)


def best_need(runner: TrialRunner, layouts: Sequence[Layout]) -> LayoutNeed:
    """Return the layout with the highest rate. The search of one ends when it misses the SLOs where another met
    them."""
    found: list[LayoutNeed] = []
    for layout in layouts:
        worth = max((one.rate for one in found), default=0.0)
        found.append(layout_need(runner, layout, worth=worth))
    return max(found, key=lambda need: need.rate)


def layout_need(runner: TrialRunner, layout: Layout, *, worth: float = 0.0, ceiling: float = math.inf) -> LayoutNeed:
    """Find a layout's rate. worth: a rate below which it is of no interest. ceiling: of the search."""
    candidate = replace(layout.candidate, guess=layout.guess)
    topology = Topology(layout.engines, pools=layout.pools, tiers=layout.tiers)

    def trial(rate: float) -> Trial:
        return runner.run(candidate, rate, config=layout.config, reads=ROUGHLY, topology=topology)

    found = find_capacity(trial, max(layout.guess, worth), ROUGH / 2, _LAYOUT_TRIALS, worth=worth, ceiling=ceiling)
    return LayoutNeed(layout, found.met, found.missed)


def confirmed_need(runner: TrialRunner, need: LayoutNeed) -> LayoutNeed:
    """Return a layout's need at a rate with which it keeps the SLOs under the planned load."""
    layout = need.layout
    if need.met is None or need.is_confirmed:
        return need
    candidate = replace(layout.candidate, guess=layout.guess)
    topology, trials = Topology(layout.engines, pools=layout.pools, tiers=layout.tiers), thorough(runner)

    def trial(rate: float) -> Trial:
        return trials.run_at(candidate, rate, topology, layout.config)

    kept = confirmed_rate(need.rate, trial)
    if kept.missed is None:
        return need
    return replace(need, met=kept.met, missed=kept.missed)


def takes_clearly_less(one: float, other: float) -> bool:
    """Whether a number of GPUs, or a price, is lower than another by more than noise; an exact tenth is."""
    return one <= (1 - MIN_GAIN) * other * (1 + ROUNDING)


# -- which pays ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LayoutOutlook:
    """needs: of each layout. link: between engines; None: not known. no_tiers: why none were tried although the
    question has some. moves: whether it is known how large is what goes to other engines and tiers."""

    needs: Sequence[LayoutNeed]
    demand: Demand
    traffic: Traffic
    link: Link | None
    no_tiers: str = ""
    moves: bool = True

    @property
    def untried(self) -> list[str]:
        """Return sentences on layouts that were not tried."""
        if not self.moves:
            return [sentence("unknown_states")]
        no_link = sentence("no_link") if self.link is None else ""
        return [one for one in (no_link, self.no_tiers) if one]

    @property
    def verdicts(self) -> list[str]:
        return [*self._on_chunks(), *self._on_pools(), *self._on_mixed(), *self._on_tiers()]

    def _named(self, *names: str) -> list[LayoutNeed]:
        """Return the layouts of these names without tiers, the best first."""
        found = [one for one in self.needs if one.layout.name in names and one.layout.tiers is None]
        return sorted(found, key=lambda one: -one.rate)

    @property
    def _colocated(self) -> list[LayoutNeed]:
        return self._named(*{one.layout.name for one in self.needs} - {DISAGGREGATED, MIXED})

    def _on_chunks(self) -> Iterator[str]:
        both = self._colocated
        if len(both) < 2 or not both[0].rate:
            return
        best, other = both[:2]
        is_clear = best.rate > (1 + MIN_GAIN) * other.rate
        ratio = best.rate / other.rate if other.rate else None
        chunks_pay = best.layout.name == CHUNKED
        yield sentence("on_chunks", is_clear=is_clear, chunks_pay=chunks_pay, ratio=ratio, missed=other.missed)

    def _on_pools(self) -> Iterator[str]:
        pools, both = self._named(DISAGGREGATED)[:1], self._colocated[:1]
        if not pools or not both:
            return
        (need,), (best,) = pools, both
        gpus, others = need.gpus(self.demand), best.gpus(self.demand)
        ratio = need.rate / best.rate if best.rate else 0.0
        if gpus is None:
            case = "never"
        elif others is None:
            case = "only"
        elif takes_clearly_less(gpus, others):
            case = "pays"
        else:
            case = "small" if ratio > 1 + MIN_GAIN else "loses" if ratio < 1 - MIN_GAIN else "alike"
        reasons = self._against(need)
        yield sentence("on_pools", case=case, gpus=gpus, others=others, ratio=ratio, best=best, reasons=reasons)

    def _against(self, need: LayoutNeed) -> list[str]:
        pools, trial = need.layout.pools, need.met or need.missed
        assert pools is not None
        reasons, tokens = [], self.traffic.input.p99
        size = need.layout.candidate.machine.block_size
        blocks = round((tokens or 1.0) / size) + need.layout.candidate.machine.state_blocks
        transfer = pools.link.rate(size).seconds(blocks)
        ttfts = [slo.limit for slo in (trial.values if trial is not None else ()) if slo.metric == "ttft"]
        if ttfts and transfer > LONG_TRANSFER * min(ttfts):
            reasons.append(sentence("slow_link", tokens=tokens or 0, seconds=transfer, gbps=pools.link.gbps))
        busy = need.met.busy if need.met is not None else ()
        if len(busy) == 2 and abs(busy[0] - busy[1]) > UNEVEN_BUSY:
            reasons.append(sentence("uneven_pools", idle="prefill" if busy[0] < busy[1] else "decode", busy=min(busy)))
        return reasons or [sentence("mixed_steps")]

    def _on_mixed(self) -> Iterator[str]:
        mixed = self._named(MIXED)[:1]
        others = self._named(*{one.layout.name for one in self.needs} - {MIXED})
        for need, other in zip(mixed, others, strict=False):
            gpus = need.gpus(self.demand)
            fewest = min(filter(None, (one.gpus(self.demand) for one in others)), default=0)
            pays = need.rate > (1 + MIN_GAIN) * other.rate
            fits = gpus is not None and takes_clearly_less(gpus, fewest)
            yield sentence("on_mixed", need=need, other=other, gpus=gpus, others=fewest, pays=pays, fits=fits)

    def _on_tiers(self) -> Iterator[str]:
        for one in self.needs:
            usual = self._named(one.layout.name)
            if one.layout.tiers is not None and usual:
                gpus, others = one.gpus(self.demand), usual[0].gpus(self.demand)
                pays = one.rate > (1 + MIN_GAIN) * usual[0].rate
                yield sentence("on_tier", need=one, usual=usual[0], gpus=gpus, others=others, pays=pays)


class TiersResult(Struct, frozen=True):
    host_gib: float | None
    folder_blocks: int | None

    @classmethod
    def of(cls, tiers: Tiers) -> TiersResult:
        return cls(tiers.host_gib, None if tiers.folder is None else tiers.folder.blocks)


class FoundLayout(Struct, frozen=True, rename={"first_missed": "gives_way_first"}):
    layout: str
    tiers: TiersResult | None
    split: tuple[int, int] | None
    decode_asks: str | None
    max_local_tokens: int | None
    rate_per_engine: float | None
    engines: tuple[int, ...] | None
    gpus: int | None
    busy: tuple[float, ...]
    cached_share: float
    first_missed: str | None


class LayoutsResult(Struct, frozen=True):
    """Layouts as in the JSON of a plan."""

    link_gbps: float | None
    found: list[FoundLayout]
    untried: list[str]
    verdicts: list[str]


def layouts_result(outlook: LayoutOutlook) -> LayoutsResult:
    return LayoutsResult(
        link_gbps=None if outlook.link is None else outlook.link.gbps,
        found=[_found(one, outlook.demand) for one in outlook.needs],
        untried=outlook.untried,
        verdicts=outlook.verdicts,
    )


def _found(need: LayoutNeed, demand: Demand) -> FoundLayout:
    pools, tiers = need.layout.pools, need.layout.tiers
    return FoundLayout(
        layout=need.layout.name,
        tiers=None if tiers is None else TiersResult.of(tiers),
        split=None if pools is None else (pools.prefill, pools.decode),
        decode_asks=None if pools is None else pools.disagg_mode.decode_asks,
        max_local_tokens=None if pools is None else pools.disagg_mode.max_local_tokens,
        rate_per_engine=need.rate or None,
        engines=need.engines(demand),
        gpus=need.gpus(demand),
        busy=() if need.met is None else need.met.busy,
        cached_share=need.cached,
        first_missed=None if need.missed is None else need.missed.shortfall,
    )
