"""All rules over the repeats of one setting at one load: what stands out, the weightiest first; or that nothing does,
and what was looked at.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from inflight.metrics.summary import Trend, trend
from inflight.report.charts.quantity import quantity
from inflight.report.diagnosis import batch, memory, requests
from inflight.report.diagnosis.finding import Evidence, Finding
from inflight.report.engine_figures import EngineFigures
from inflight.report.run import Option, Run

EngineRule = Callable[[Evidence, EngineFigures], Finding | None]
ENGINE_RULES: tuple[EngineRule, ...] = (*batch.RULES, *memory.RULES)
# What an engine that nobody waited for can still be advised: the shape of its figures is that of single requests.
IDLE_RULES: tuple[EngineRule, ...] = (batch.room, memory.outgrown)
INVALID = Finding(
    "The figures are not to be believed",
    "The run is not valid: the load client did not keep up, as the notes say, and no rule was applied.",
    "Latencies are partly the client's own.",
    "Measure again with more --processes, or with less beside the client on its machine.",
    weight=3,
)
_FEWEST = 10  # requests of a tenant, for its latency to mean something


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """looked_at: the figures that the rules read, in words; said where there is no finding."""

    findings: tuple[Finding, ...]
    looked_at: str


def diagnose(runs: Sequence[Run], engines: Sequence[EngineFigures | None], options: Mapping[str, Option]) -> Diagnosis:
    """Of the repeats' means, which the tables tell. engines: the figures of each run's engine, where its steps are
    known."""
    evidence = mean_of([_evidence(run, engine, options) for run, engine in zip(runs, engines, strict=True)])
    if not all(run.valid for run in runs):
        return Diagnosis((INVALID,), _looked_at(evidence))
    return judge(evidence)


def judge(evidence: Evidence) -> Diagnosis:
    engine = evidence.engine
    idle = engine is not None and batch.idle(engine)
    found = [] if idle else [rule(evidence) for rule in requests.RULES]
    if engine is not None:
        found += [rule(evidence, engine) for rule in (IDLE_RULES if idle else ENGINE_RULES)]
    found += [rule(evidence) for rule in ((requests.refusals, requests.failures) if idle else requests.SHARING)]
    findings = sorted((one for one in found if one is not None), key=lambda one: -one.weight)
    return Diagnosis(tuple(findings), _looked_at(evidence))


def mean_of(repeats: Sequence[Any]) -> Any:
    """The same dataclass, mapping or number with the mean of each number in it, over repeats that have it; of what
    has no mean the first, of trends the one that is most surely rising."""
    known = [one for one in repeats if one is not None]
    if len(known) < 2:
        return known[0] if known else None
    match known[0]:
        case bool() | str() | tuple():
            return known[0]
        case int() | float():
            return statistics.fmean(known)
        case Trend():
            return max(known, key=lambda one: (one.growing, one.z))
        case Mapping():
            names = dict.fromkeys(name for one in known for name in one)
            return {name: mean_of([one.get(name) for one in known]) for name in names}
        case first if is_dataclass(first):
            means = {field.name: mean_of([getattr(one, field.name) for one in known]) for field in fields(first)}
            return replace(first, **means)  # type: ignore[type-var]
    return known[0]


def _evidence(run: Run, figures: EngineFigures | None, options: Mapping[str, Option]) -> Evidence:
    engine = run.engine
    settings = {name: option.value for name, option in options.items()}
    repeated = None
    if engine is not None and (prompts := sum(request.prompt_tokens for request in engine.requests)):
        repeated = sum(request.repeated_tokens for request in engine.requests) / prompts
    ttfts = [(one.intended, value) for one in run.observations if (value := one.ttft) is not None]
    by_tenant: dict[str, list[float]] = defaultdict(list)
    for one in run.observations:
        if one.outcome == "completed" and one.ttft is not None:
            by_tenant[one.tenant].append(one.ttft)
    return Evidence(
        summary=run.summary,
        engine=figures,
        settings=settings,
        longest_prompt=max((one.prompt_tokens for one in run.observations), default=0),
        repeated_prompts=repeated,
        tenant_ttft={name: statistics.fmean(some) for name, some in by_tenant.items() if len(some) >= _FEWEST},
        arrivals=trend(ttfts, min(ttfts)[0], max(ttfts)[0]) if ttfts else None,
    )


def _looked_at(evidence: Evidence) -> str:
    summary, engine = evidence.summary, evidence.engine
    figures = [
        f"TTFT p50 {quantity(summary.ttft.p50, 's')} and p99 {quantity(summary.ttft.p99, 's')}",
        f"ITL p50 {quantity(summary.itl.p50, 's')} and p99 {quantity(summary.itl.p99, 's')}",
        "whether TTFT grew during the run"
        if evidence.arrivals or summary.ttft_trend
        else "too few requests to tell whether TTFT grew",
        f"{quantity(summary.rejected)} rejected and {quantity(summary.failed)} failed of {quantity(summary.offered)}",
    ]
    if engine is not None:
        figures += [
            f"a step under way {quantity(engine.busy, 'share')} of the time",
            f"occupancy {quantity(engine.occupancy, 'share')}",
            f"queue {quantity(engine.time_in['queue'], 's')} of {quantity(sum(engine.time_in.values()), 's')}",
            f"KV blocks held {quantity(engine.kv_usage, 'share')}, at most {quantity(engine.kv_peak, 'share')}",
            f"KV waste {quantity(engine.kv_waste, 'share')}",
            f"padding {quantity(engine.padding_waste, 'share')}",
            f"{quantity(engine.preemptions)} preemptions",
            f"{quantity(engine.prefix_share, 'share')} of prompt tokens cached",
        ]
    else:
        figures.append("the engine's steps are not known, so that batch and memory were not looked at")
    return "; ".join(figures) + "."
