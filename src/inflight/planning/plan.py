"""The answer to a sizing question: replicas, settings, latencies, cost, how sure they are, and what would change them.

Knows the course from question to answer; the steps of it are `sizing`, `binding`, `outlook` and `mistakes`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from inflight.planning.binding import Binding, binding
from inflight.planning.mistakes import mistakes
from inflight.planning.outlook import Change, Strategies, compare, outlook
from inflight.planning.setting import Setting
from inflight.planning.simulation import Trial
from inflight.planning.sizing import (
    SIMULATED,
    Bench,
    Candidate,
    Progress,
    Question,
    candidates,
    closed_form_ratio,
    measure,
    quiet,
    settle,
    traffic_of,
    widen,
)
from inflight.planning.slo import METRICS
from inflight.planning.traffic import Traffic

CLOSE = 1.1  # times as cheap that another machine must be to be preferred to the one that looked best
HARDER = 3  # times that replicas are added for a harder seed


class PlanError(ValueError):
    """There is nothing to size: the sentence says what does not fit, and what would."""


@dataclass(frozen=True, slots=True)
class Cost:
    """US dollars, of all replicas together, at the demand's mean rate. Per million tokens."""

    per_hour: float
    per_million_output: float
    per_million_tokens: float  # prompts and answers together


@dataclass(frozen=True, slots=True)
class Plan:
    """chosen: the machine and settings; replicas: how many. replicas_low, replicas_high: with everything uncertain at
    its fast and at its slow end.

    trial: at the planned load. spans: latency → (low, high) for p50, p95, p99 in seconds, over seeds and over both ends
    of what is uncertain. utilisation: planned load over the highest one that keeps the promises. others: machines that
    were looked at, with the rates they keep (0: none does); unfit: why others were not.
    """

    question: Question
    traffic: Traffic
    chosen: Candidate
    setting: Setting
    replicas: int
    replicas_low: int
    replicas_high: int
    trial: Trial
    spans: Mapping[str, tuple[tuple[float, float], ...]]
    utilisation: float
    binding: Binding
    others: Sequence[Candidate]
    changes: Sequence[Change]
    mistakes: Sequence[str]
    strategies: Sequence[Strategies]
    cost: Cost | None

    @property
    def gpus(self) -> int:
        return self.replicas * self.chosen.machine.gpus

    @property
    def extrapolated(self) -> bool:
        """Whether there are more replicas than were simulated together."""
        return self.replicas > self.trial.replicas


@dataclass(frozen=True, slots=True)
class Impossible:
    """No number of replicas keeps the promises. tried: each with the trial at the lowest rate that was tried, whose
    percentiles are the best there is."""

    question: Question
    traffic: Traffic
    tried: Sequence[Candidate]


def plan(question: Question, *, strategies: bool = False, progress: Progress = quiet) -> Plan | Impossible:
    """strategies: whether to find what each batching strategy would need, too. progress: told of each stage.

    Raises PlanError where the model and the longest request fit on none of the machines.
    """
    traffic = traffic_of(question.demand)
    found = candidates(question, traffic)
    if not found:
        raise PlanError(_nothing_fits(question, traffic))
    bench = Bench(question, traffic)
    measured = _measured(bench, found, progress)
    usable = [one for one in measured if one.rate]
    if not usable:
        return Impossible(question, traffic, measured)
    best = min(usable, key=lambda one: (one.gpus(question.demand), one.machine.gpus))
    others = [one for one in measured if one.machine is not best.machine]
    return _answer(bench, best, others, strategies, progress)


def _measured(bench: Bench, found: Sequence[Candidate], progress: Progress) -> list[Candidate]:
    """The cheapest by the closed form; more of them only while none keeps the promises."""
    demand = bench.question.demand
    measured: list[Candidate] = []
    for candidate in found:
        gpus = min((one.gpus(demand) for one in measured if one.rate), default=math.inf)
        if gpus < math.inf and (len(measured) >= SIMULATED or candidate.machine.gpus * CLOSE > gpus):
            continue  # enough was looked at, or not even one of these replicas is cheaper
        progress(f"{candidate.machine.name}: the highest rate that keeps the promises")
        one = measure(bench, candidate, worth=CLOSE * candidate.machine.gpus * demand.rate / gpus)
        measured.append(widen(bench, one) if one.rate else one)
    return measured


def _answer(bench: Bench, best: Candidate, others: Sequence[Candidate], strategies: bool, progress: Progress) -> Plan:
    question, traffic = bench.question, bench.traffic
    replicas = best.replicas(question.demand)
    progress("The planned load, with other seeds and at both ends of what is uncertain")
    trial = _planned(bench, best, replicas)
    for _ in range(HARDER):  # another seed may be harder than that of the search
        if trial.met or not question.slos:
            break
        replicas = max(replicas + 1, round(1.04 * replicas))
        trial = _planned(bench, best, replicas)
    share = question.demand.rate / replicas
    best = replace(best, pooled=min(best.pooled, replicas))
    best = replace(best, setting=settle(best, traffic, trial, question.wishes))
    spans, few, many = _interval(bench, best, trial, share)
    return Plan(
        question=question,
        traffic=traffic,
        chosen=best,
        setting=best.setting,
        replicas=replicas,
        replicas_low=min(replicas, few),
        replicas_high=max(replicas, many),
        trial=trial,
        spans=spans,
        utilisation=min(1.0, share / best.rate),
        binding=binding(best, trial, traffic),
        others=others,
        changes=outlook(bench, best, replicas, progress),
        mistakes=mistakes(question, traffic, best, trial, replicas),
        strategies=compare(bench, best, progress) if strategies else (),
        cost=_cost(best, replicas, question, traffic),
    )


def _planned(bench: Bench, best: Candidate, replicas: int) -> Trial:
    return bench.run(best, bench.question.demand.rate / replicas, replicas=min(best.pooled, replicas), seed=2)


def _interval(
    bench: Bench, best: Candidate, trial: Trial, share: float
) -> tuple[dict[str, tuple[tuple[float, float], ...]], int, int]:
    """Spans of the percentiles over seeds and cases at the planned load; replicas at the fast and at the slow end,
    by the closed form."""
    trials = [trial, bench.run(best, share, seed=3)]
    rates = [best.rate]
    for model in best.machine.cases:
        trials.append(bench.run(best, share, seed=2, model=model))
        rates.append(best.rate * closed_form_ratio(bench, best, model))
    spans: dict[str, tuple[tuple[float, float], ...]] = {
        name: tuple(
            (min(one.percentiles[name][place] for one in trials), max(one.percentiles[name][place] for one in trials))
            for place in range(3)
        )
        for name in METRICS
    }
    demand = bench.question.demand.rate
    few = math.ceil(demand / max(rates))
    return spans, few, math.ceil(demand / min(rates))


def _cost(best: Candidate, replicas: int, question: Question, traffic: Traffic) -> Cost | None:
    price = best.machine.price_per_hour
    if price is None:
        return None
    per_hour = price * replicas
    output_per_hour = question.demand.rate * traffic.output_mean * 3600
    all_per_hour = output_per_hour + question.demand.rate * traffic.input_mean * 3600
    return Cost(per_hour, per_hour / output_per_hour * 1e6, per_hour / all_per_hour * 1e6)


def _nothing_fits(question: Question, traffic: Traffic) -> str:
    parts = []
    for machine in question.machines:
        memory = machine.memory
        if memory is None:
            parts.append(f"{machine.name} holds {machine.tokens:,} tokens")
        else:
            parts.append(
                f"{machine.name}: weights take {memory.weight_bytes / 1e9:,.1f} of "
                f"{memory.memory_bytes / 1e9:,.0f} GB per "
                f"GPU, leaving KV memory for {machine.tokens:,} tokens"
            )
    return (
        f"The model and its longest request ({traffic.longest:,} tokens) fit on none of: {'; '.join(parts)}. Take GPUs "
        "with more memory, --weights fp8 or int8, or --kv fp8."
    )
