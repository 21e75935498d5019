"""The answer to a sizing question: replicas, settings, latencies, cost, uncertainty, and what would change them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import Struct

from inflight.metrics.slo import METRICS
from inflight.planning import outlook, sizing
from inflight.planning.bottleneck import Bottleneck, bottleneck
from inflight.planning.demand import traffic_of
from inflight.planning.engine_config import EngineConfig
from inflight.planning.layouts import LayoutOutlook, layout_needs
from inflight.planning.rendering import render, sentence
from inflight.planning.simulation import Topology, Trial
from inflight.planning.sizing import Candidate, Progress, Question, TrialRunner, quiet
from inflight.planning.traffic import Traffic
from inflight.planning.warnings import warnings

CLOSE = 1.1  # times as cheap that another machine must be to be preferred to the one that looked best
HARDER, HARDER_BY = 4, 1.05  # times that replicas are added for a harder seed, and by what factor


class PlanError(ValueError):
    """No machine holds the model and the longest request; the message says what would."""


class Cost(
    Struct,
    frozen=True,
    rename={
        "per_million_output": "per_million_output_tokens",
        "mean_per_million_output": "mean_per_million_output_tokens",
    },
):
    """US dollars of all replicas together. per_million_output, per_million_tokens (prompts and answers): at the planned
    rate. mean_per_…: at the demand's mean rate, which is lower where the planned one is that of the busiest minutes:
    idle machines cost as much."""

    per_hour: float
    per_million_output: float
    per_million_tokens: float
    mean_per_million_output: float
    mean_per_million_tokens: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer.

    replicas_low, replicas_high: needed if everything uncertain is at its fast end, and at its slow end, found by
    trials; high None: no number meets the SLOs there. trial: at the planned load. spans: latency → (low, high) for p50,
    p95, p99 in seconds, over seeds and over both ends of what is uncertain. utilisation: planned load over the highest
    one that meets the SLOs. others: machines that were simulated too (rate 0: none meets the SLOs). speculation,
    layouts: None where not asked for.
    """

    question: Question
    traffic: Traffic
    chosen: Candidate
    config: EngineConfig
    replicas: int
    replicas_low: int
    replicas_high: int | None
    trial: Trial
    spans: Mapping[str, tuple[tuple[float, float], ...]]
    utilisation: float
    bottleneck: Bottleneck
    others: Sequence[Candidate]
    changes: Sequence[outlook.Change]
    warnings: Sequence[str]
    strategies: Sequence[outlook.StrategyNeed]
    cost: Cost | None
    speculation: outlook.SpeculationOutlook | None = None
    routers: Sequence[outlook.RouterNeed] = ()
    layouts: LayoutOutlook | None = None

    @property
    def gpus(self) -> int:
        return self.replicas * self.chosen.machine.gpus

    @property
    def replicas_per_node(self) -> int:
        """Return how many replicas fit on a node, which they do not span; 0 where the machine is no GPU."""
        gpu = getattr(self.chosen.machine.model, "gpu", None)
        return 0 if gpu is None else max(1, gpu.node_gpus // self.chosen.machine.gpus)

    @property
    def nodes(self) -> int | None:
        """Return the machines with GPUs in them; None where the machine is no GPU."""
        each = self.replicas_per_node
        return math.ceil(self.replicas / each) if each else None

    @property
    def extrapolated(self) -> bool:
        """Whether there are more replicas than were simulated together."""
        return self.replicas > self.trial.replicas


@dataclass(frozen=True, slots=True)
class Infeasible:
    """No number of replicas meets the SLOs. tried: each with the trial at the lowest rate that was tried, whose
    percentiles are the best that are possible."""

    question: Question
    traffic: Traffic
    tried: Sequence[Candidate]

    @property
    def advice(self) -> str:
        """Return the SLOs that the best machine could meet, with a quarter to spare for load, as --slo takes them."""
        parts = []
        for slo in self.question.slos:
            trials = [one.capacity.missed for one in self.tried if one.capacity.missed is not None]
            values = [trial.values.get(slo, math.inf) for trial in trials]
            best = min((value for value in values if math.isfinite(value)), default=math.inf)
            if slo.limit < best < math.inf:
                parts.append(f"{slo.metric}={math.ceil(best * 1.25e3)}(p{slo.share * 100:g})")
        return ",".join(parts)


def plan(question: Question, *, strategies: bool = False, progress: Progress = quiet) -> Plan | Infeasible:
    """Size a deployment. strategies: whether to compare batching strategies, too. progress: called at each stage.

    Raises PlanError where the model and the longest request fit on none of the machines.
    """
    traffic = traffic_of(question.demand)
    found = sizing.candidates(question, traffic)
    if not found:
        raise PlanError(sentence("does_not_fit", machines=question.machines, longest=traffic.longest))
    runner = TrialRunner(question, traffic)
    measured = _measure(runner, found, progress)
    usable = [one for one in measured if one.rate]
    if not usable:
        return Infeasible(question, traffic, measured)
    best = min(usable, key=lambda one: (one.gpus(question.demand), one.machine.gpus))
    others = [one for one in measured if one.machine is not best.machine]
    return _answer(runner, best, others, strategies, progress)


def _measure(runner: TrialRunner, found: Sequence[Candidate], progress: Progress) -> list[Candidate]:
    """Measure the cheapest by the closed form; more of them only while none meets the SLOs."""
    demand = runner.question.demand
    measured: list[Candidate] = []
    for candidate in found:
        gpus = min((one.gpus(demand) for one in measured if one.rate), default=math.inf)
        if gpus < math.inf and (len(measured) >= sizing.SIMULATED or candidate.machine.gpus * CLOSE > gpus):
            continue  # enough were measured, or not even one of these replicas is cheaper
        progress(f"{candidate.machine.name}: the highest rate that meets the SLOs")
        one = sizing.measure(runner, candidate, worth=CLOSE * candidate.machine.gpus * demand.rate / gpus)
        measured.append(sizing.widen(runner, one) if one.rate else one)
    return measured


def _answer(
    runner: TrialRunner, best: Candidate, others: Sequence[Candidate], strategies: bool, progress: Progress
) -> Plan:
    question, traffic = runner.question, runner.traffic
    progress("The planned load, with other seeds and at both ends of what is uncertain")
    best, replicas, trial = _plan_replicas(runner, best)
    share = question.demand.rate / replicas
    fewer = replace(best, config=sizing.with_fewer_rows(best, traffic, trial, question.overrides))
    another = runner.run(fewer, share, seed=3)
    if another.met or not trial.met:
        best = fewer
    else:  # fewer request slots are too few for this traffic's bursts
        another = runner.run(best, share, seed=3)
    at_ends = [runner.run(best, share, seed=2, model=model) for model in best.machine.cases]
    low, high = _ends(runner, best, replicas, at_ends)
    trials = [trial, another, *at_ends]
    return Plan(
        question=question,
        traffic=traffic,
        chosen=best,
        config=best.config,
        replicas=replicas,
        replicas_low=low,
        replicas_high=high,
        trial=trial,
        spans={name: _span([one.percentiles[name] for one in trials]) for name in METRICS},
        utilisation=min(1.0, share / best.rate),
        bottleneck=bottleneck(best, trial, traffic),
        others=others,
        changes=outlook.find_changes(runner, best, replicas, progress),
        warnings=warnings(question, traffic, best, trial, replicas),
        strategies=outlook.compare_strategies(runner, best, progress) if strategies else (),
        cost=_cost(best, replicas, question, traffic),
        speculation=_speculation(runner, best, replicas, progress),
        routers=outlook.compare_routers(runner, best, progress),
        layouts=_layouts(runner, best, progress),
    )


def _plan_replicas(runner: TrialRunner, best: Candidate) -> tuple[Candidate, int, Trial]:
    """Return the replicas that meet the SLOs with another seed than that of the search, which may be harder."""
    demand = runner.question.demand
    replicas = best.replicas(demand)
    for again in range(HARDER + 1):
        pooled = Topology(min(best.pooled, replicas))
        trial = runner.run(best, demand.rate / replicas, seed=2, reads=sizing.THOROUGHLY, topology=pooled)
        if trial.met and again:
            best = replace(best, rate=trial.rate)
        if trial.met or not runner.question.slos or again == HARDER:
            break
        replicas = max(replicas + 1, round(HARDER_BY * replicas))
    return replace(best, pooled=min(best.pooled, replicas)), replicas, trial


def _span(found: Sequence[tuple[float, ...]]) -> tuple[tuple[float, float], ...]:
    return tuple((min(values), max(values)) for values in zip(*found, strict=True))


def _layouts(runner: TrialRunner, best: Candidate, progress: Progress) -> LayoutOutlook | None:
    question, machine = runner.question.layouts, best.machine
    if question is None:
        return None
    link, tiers, no_tiers = question.link(machine), question.tiers(machine), ""
    moves = not machine.state_snapshots or machine.state_blocks > 0
    if not moves:
        link, tiers = None, ()
    elif tiers and runner.traffic.shared < outlook.MIN_SHARED:
        tiers, no_tiers = (), sentence("no_shared_prefixes")
    needs = layout_needs(runner, best, link, question.disagg_modes, tiers, progress)
    return LayoutOutlook(needs, runner.question.demand, runner.traffic, link, no_tiers, moves)


def _speculation(
    runner: TrialRunner, best: Candidate, replicas: int, progress: Progress
) -> outlook.SpeculationOutlook | None:
    """Try speculation where asked for; raise PlanError where the model cannot take drafts back."""
    drafts = runner.question.drafts
    if drafts is None:
        return None
    if best.machine.state_snapshots:
        raise PlanError(
            "--speculation-acceptance tries drafts, but this model's layers keep a recurrent state, which cannot be "
            "taken back behind rejected drafts; leave it out."
        )
    return outlook.try_speculation(runner, best, replicas, drafts, progress)


def _ends(runner: TrialRunner, best: Candidate, replicas: int, planned: Sequence[Trial]) -> tuple[int, int | None]:
    """Return the replicas with everything uncertain at its fast end, and at its slow end.

    planned: at the planned load, slow and fast. SLOs that the slow end missed there take more replicas, even if a
    shorter trial with another seed meets them.
    """
    if not best.machine.cases:
        return replicas, replicas
    slow, fast = (sizing.rate_under(runner, best, model) for model in best.machine.cases)
    demand = runner.question.demand.rate
    low = min(replicas, math.ceil(demand / max(fast, best.rate)))
    if not slow:
        return low, None
    high = replicas if planned[0].met else max(replicas + 1, round(HARDER_BY * replicas))
    return low, max(high, math.ceil(demand / slow))


def _cost(best: Candidate, replicas: int, question: Question, traffic: Traffic) -> Cost | None:
    price = best.machine.price_per_hour
    if price is None:
        return None
    output, both = traffic.output_mean, traffic.output_mean + traffic.input_mean
    pairs = [(rate, tokens) for rate in (question.demand.rate, question.demand.mean_rate) for tokens in (output, both)]
    per_hour = price * replicas
    return Cost(per_hour, *(per_hour / (rate * tokens * 3600) * 1e6 for rate, tokens in pairs))


def as_text(answer: Plan | Infeasible) -> str:
    """Return the whole answer, in paragraphs."""
    if isinstance(answer, Infeasible):
        return render("infeasible", answer=answer)
    return render("plan", plan=answer, metrics=METRICS)
