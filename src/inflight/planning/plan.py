"""The answer to a sizing question: replicas, settings, latencies, cost, how sure they are, and what would change them.

Knows the course from question to answer; the steps of it are `sizing`, `bottleneck`, `outlook` and `warnings`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from inflight.metrics.slo import METRICS
from inflight.planning.bottleneck import Bottleneck, bottleneck
from inflight.planning.engine_config import EngineConfig
from inflight.planning.layout_verdict import LayoutOutlook
from inflight.planning.layouts import layout_needs
from inflight.planning.outlook import Change, Strategies, compare, outlook
from inflight.planning.routers import WORTH_ASKING, RouterNeed, router_needs
from inflight.planning.simulation import Trial
from inflight.planning.sizing import (
    SIMULATED,
    THOROUGHLY,
    Candidate,
    Progress,
    Question,
    TrialRunner,
    candidates,
    measure,
    quiet,
    rate_under,
    settle,
    traffic_of,
    widen,
)
from inflight.planning.speculation import SpeculationOutlook, speculation_outlook
from inflight.planning.traffic import Traffic
from inflight.planning.warnings import warnings

CLOSE = 1.1  # times as cheap that another machine must be to be preferred to the one that looked best
HARDER, HARDER_BY = 4, 1.05  # times that replicas are added for a harder seed, and by what factor


class PlanError(ValueError):
    """There is nothing to size: the sentence says what does not fit, and what would."""


@dataclass(frozen=True, slots=True)
class Cost:
    """US dollars, of all replicas together. per_million_output, per_million_tokens (prompts and answers together):
    while the planned rate lasts. mean_per_million_output, mean_per_million_tokens: at the demand's mean rate over all
    of the time, which is less where the planned one is that of the busiest minutes: machines cost when they idle, too.
    """

    per_hour: float
    per_million_output: float
    per_million_tokens: float
    mean_per_million_output: float
    mean_per_million_tokens: float


@dataclass(frozen=True, slots=True)
class Plan:
    """chosen: the machine and settings; replicas: how many. replicas_low, replicas_high: that it takes if everything
    uncertain is at its fast end, and at its slow end, found by trials; high None: there no number keeps the SLOs.

    trial: at the planned load. spans: latency → (low, high) for p50, p95, p99 in seconds, over seeds and over both ends
    of what is uncertain. utilisation: planned load over the highest one that keeps the SLOs. others: machines that
    were looked at, with the rates they keep (0: none does); unfit: why others were not. speculation: what it would
    bring, where that was asked. routers: what it takes behind each, where prompts share their beginnings. layouts: what
    each layout takes, where that was asked.
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
    changes: Sequence[Change]
    warnings: Sequence[str]
    strategies: Sequence[Strategies]
    cost: Cost | None
    speculation: SpeculationOutlook | None = None
    routers: Sequence[RouterNeed] = ()
    layouts: LayoutOutlook | None = None

    @property
    def gpus(self) -> int:
        return self.replicas * self.chosen.machine.gpus

    @property
    def replicas_per_node(self) -> int:
        """Replicas do not span nodes; 0 where the machine is no GPU."""
        gpu = getattr(self.chosen.machine.model, "gpu", None)
        return 0 if gpu is None else max(1, gpu.node_gpus // self.chosen.machine.gpus)

    @property
    def nodes(self) -> int | None:
        """Machines with GPUs in them; None where the machine is no GPU."""
        each = self.replicas_per_node
        return math.ceil(self.replicas / each) if each else None

    @property
    def extrapolated(self) -> bool:
        """Whether there are more replicas than were simulated together."""
        return self.replicas > self.trial.replicas


@dataclass(frozen=True, slots=True)
class Infeasible:
    """No number of replicas keeps the SLOs. tried: each with the trial at the lowest rate that was tried, whose
    percentiles are the best there is."""

    question: Question
    traffic: Traffic
    tried: Sequence[Candidate]


def plan(question: Question, *, strategies: bool = False, progress: Progress = quiet) -> Plan | Infeasible:
    """strategies: whether to find what each batching strategy would need, too. progress: told of each stage.

    Raises PlanError where the model and the longest request fit on none of the machines.
    """
    traffic = traffic_of(question.demand)
    found = candidates(question, traffic)
    if not found:
        raise PlanError(_nothing_fits(question, traffic))
    runner = TrialRunner(question, traffic)
    measured = _measured(runner, found, progress)
    usable = [one for one in measured if one.rate]
    if not usable:
        return Infeasible(question, traffic, measured)
    best = min(usable, key=lambda one: (one.gpus(question.demand), one.machine.gpus))
    others = [one for one in measured if one.machine is not best.machine]
    return _answer(runner, best, others, strategies, progress)


def _measured(runner: TrialRunner, found: Sequence[Candidate], progress: Progress) -> list[Candidate]:
    """The cheapest by the closed form; more of them only while none keeps the SLOs."""
    demand = runner.question.demand
    measured: list[Candidate] = []
    for candidate in found:
        gpus = min((one.gpus(demand) for one in measured if one.rate), default=math.inf)
        if gpus < math.inf and (len(measured) >= SIMULATED or candidate.machine.gpus * CLOSE > gpus):
            continue  # enough was looked at, or not even one of these replicas is cheaper
        progress(f"{candidate.machine.name}: the highest rate that keeps the promises")
        one = measure(runner, candidate, worth=CLOSE * candidate.machine.gpus * demand.rate / gpus)
        measured.append(widen(runner, one) if one.rate else one)
    return measured


def _answer(
    runner: TrialRunner, best: Candidate, others: Sequence[Candidate], strategies: bool, progress: Progress
) -> Plan:
    question, traffic = runner.question, runner.traffic
    replicas = best.replicas(question.demand)
    progress("The planned load, with other seeds and at both ends of what is uncertain")
    trial = _planned(runner, best, replicas)
    for _ in range(HARDER):  # another seed may be harder than that of the search
        if trial.met or not question.slos:
            break
        replicas = max(replicas + 1, round(HARDER_BY * replicas))
        trial = _planned(runner, best, replicas)
        if trial.met:
            best = replace(best, rate=trial.rate)
    share = question.demand.rate / replicas
    best = replace(best, pooled=min(best.pooled, replicas))
    settled = replace(best, config=settle(best, traffic, trial, question.overrides))
    another = runner.run(settled, share, seed=3)
    if another.met or not trial.met:
        best = settled
    else:  # fewer rows are too few for this traffic's clumps
        another = runner.run(best, share, seed=3)
    at_ends = [runner.run(best, share, seed=2, model=model) for model in best.machine.cases]
    few, many = _ends(runner, best, replicas, at_ends)
    return Plan(
        question=question,
        traffic=traffic,
        chosen=best,
        config=best.config,
        replicas=replicas,
        replicas_low=few,
        replicas_high=many,
        trial=trial,
        spans=_spans([trial, another, *at_ends]),
        utilisation=min(1.0, share / best.rate),
        bottleneck=bottleneck(best, trial, traffic),
        others=others,
        changes=outlook(runner, best, replicas, progress),
        warnings=warnings(question, traffic, best, trial, replicas),
        strategies=compare(runner, best, progress) if strategies else (),
        cost=_cost(best, replicas, question, traffic),
        speculation=_speculation(runner, best, replicas, progress),
        routers=router_needs(runner, best, progress),
        layouts=_layouts(runner, best, progress),
    )


def _layouts(runner: TrialRunner, best: Candidate, progress: Progress) -> LayoutOutlook | None:
    """None where nobody asked."""
    asked, demand = runner.question.layouts, runner.question.demand
    if asked is None:
        return None
    link, tiers, no_tiers = asked.link(best.machine), asked.tiers(best.machine), ""
    moves = best.machine.windows == (0,) and not best.machine.state_snapshots
    if not moves:
        link, tiers = None, ()
    elif tiers and runner.traffic.shared < WORTH_ASKING:
        tiers, no_tiers = (), "tiers were not tried: prompts share no beginnings, which is all that they keep"
    needs = layout_needs(runner, best, link, asked.disagg_modes, tiers, progress)
    return LayoutOutlook(needs, demand, runner.traffic, link, no_tiers, moves)


def _speculation(runner: TrialRunner, best: Candidate, replicas: int, progress: Progress) -> SpeculationOutlook | None:
    """None where nobody asked. Raises PlanError where the model cannot take drafts back."""
    drafts = runner.question.drafts
    if drafts is None:
        return None
    if best.machine.state_snapshots:
        raise PlanError(
            "--speculation-acceptance asks what drafts would bring, but this model's layers keep a recurrent state, "
            "which cannot be taken back behind wrong drafts; leave it out."
        )
    return speculation_outlook(runner, best, replicas, drafts, progress)


def _planned(runner: TrialRunner, best: Candidate, replicas: int) -> Trial:
    pooled = min(best.pooled, replicas)
    return runner.run(best, runner.question.demand.rate / replicas, replicas=pooled, seed=2, reads=THOROUGHLY)


def _spans(trials: Sequence[Trial]) -> dict[str, tuple[tuple[float, float], ...]]:
    """Least and greatest of the percentiles."""
    return {
        name: tuple(
            (min(one.percentiles[name][place] for one in trials), max(one.percentiles[name][place] for one in trials))
            for place in range(3)
        )
        for name in METRICS
    }


def _ends(runner: TrialRunner, best: Candidate, replicas: int, planned: Sequence[Trial]) -> tuple[int, int | None]:
    """Replicas with everything uncertain at its fast end, and at its slow end: these too are found by trials.

    planned: at the planned load, slow and fast. What the slow end did not keep there takes more replicas, whatever a
    shorter trial with another seed says.
    """
    if not best.machine.cases:
        return replicas, replicas
    slow, fast = (rate_under(runner, best, model) for model in best.machine.cases)
    demand = runner.question.demand.rate
    few = min(replicas, math.ceil(demand / max(fast, best.rate)))
    if not slow:
        return few, None
    more = replicas if planned[0].met else max(replicas + 1, round(HARDER_BY * replicas))
    return few, max(more, math.ceil(demand / slow))


def _cost(best: Candidate, replicas: int, question: Question, traffic: Traffic) -> Cost | None:
    price = best.machine.price_per_hour
    if price is None:
        return None
    per_hour = price * replicas

    def per_million(rate: float, tokens: float) -> float:
        return per_hour / (rate * tokens * 3600) * 1e6

    rate, mean = question.demand.rate, question.demand.mean_rate
    output, both = traffic.output_mean, traffic.output_mean + traffic.input_mean
    return Cost(
        per_hour, per_million(rate, output), per_million(rate, both), per_million(mean, output), per_million(mean, both)
    )


def _nothing_fits(question: Question, traffic: Traffic) -> str:
    parts = []
    for machine in question.machines:
        memory = machine.memory
        if memory is None:
            parts.append(f"{machine.name} holds {machine.tokens:,} tokens")
        else:
            beside = f" and recurrent states {memory.state_bytes / 1e9:,.1f}" if memory.state_bytes else ""
            beside += f" and adapters {memory.adapter_bytes / 1e9:,.1f}" if memory.adapter_bytes else ""
            parts.append(
                f"{machine.name}: weights take {memory.weight_bytes / 1e9:,.1f}{beside} of "
                f"{memory.memory_bytes / 1e9:,.0f} GB per GPU, leaving KV memory for {machine.tokens:,} tokens"
            )
    return (
        f"The model and its longest request ({traffic.longest:,} tokens) fit on none of: {'; '.join(parts)}. Take GPUs "
        "with more memory, --weights fp8 or int8, or --kv fp8."
    )
