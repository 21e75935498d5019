"""All rules over one run: what stands out, the weightiest first; or that nothing does, and what was looked at."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from inflight.metrics.steadiness import trend
from inflight.report.charts.quantity import quantity
from inflight.report.diagnosis import batch, latency, memory, sharing
from inflight.report.diagnosis.finding import Evidence, Finding
from inflight.report.figures import Figures, figures_of
from inflight.report.run import Option, Run

Rule = Callable[[Evidence], Finding | None]
RULES: tuple[Rule, ...] = (*latency.RULES, *batch.RULES, *memory.RULES, *sharing.RULES)
_FEWEST = 10  # requests of a tenant, for its latency to mean something


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """looked_at: the figures that the rules read, in words; said where there is no finding."""

    findings: tuple[Finding, ...]
    looked_at: str


def diagnose(run: Run, options: Mapping[str, Option] | None = None, figures: Figures | None = None) -> Diagnosis:
    """figures: of this run, where they are computed already."""
    evidence = evidence_of(run, options or {}, figures or figures_of(run))
    return judge(evidence)


def judge(evidence: Evidence) -> Diagnosis:
    findings = [finding for rule in RULES if (finding := rule(evidence)) is not None]
    return Diagnosis(tuple(sorted(findings, key=lambda one: -one.weight)), _looked_at(evidence))


def evidence_of(run: Run, options: Mapping[str, Option], figures: Figures) -> Evidence:
    engine = run.engine
    settings = {name: option.value for name, option in options.items()}
    repeated = None
    if engine is not None and (prompts := sum(account.prompt_tokens for account in engine.accounts)):
        repeated = sum(account.repeated_tokens for account in engine.accounts) / prompts
    ttfts = [(one.intended, value) for one in run.observations if (value := one.ttft) is not None]
    by_tenant: dict[str, list[float]] = defaultdict(list)
    for one in run.observations:
        if one.outcome == "completed" and one.ttft is not None:
            by_tenant[one.tenant].append(one.ttft)
    return Evidence(
        summary=run.summary,
        engine=figures.engine,
        settings=settings,
        capacity=engine.capacity if engine is not None else {},
        longest_prompt=max((one.prompt_tokens for one in run.observations), default=0),
        repeated_prompts=repeated,
        tenant_ttft={name: statistics.fmean(some) for name, some in by_tenant.items() if len(some) >= _FEWEST},
        arrivals=trend(ttfts, min(ttfts)[0], max(ttfts)[0]) if ttfts else None,
    )


def _looked_at(evidence: Evidence) -> str:
    summary, engine = evidence.summary, evidence.engine
    told = [
        f"TTFT p50 {quantity(summary.ttft.p50, 's')} and p99 {quantity(summary.ttft.p99, 's')}",
        f"ITL p50 {quantity(summary.itl.p50, 's')} and p99 {quantity(summary.itl.p99, 's')}",
        "whether TTFT grew during the run"
        if evidence.arrivals or summary.ttft_trend
        else "too few requests to tell whether TTFT grew",
        f"{summary.rejected:,} rejected and {summary.failed:,} failed of {summary.offered:,}",
    ]
    if engine is not None:
        told += [
            f"occupancy {quantity(engine.occupancy, 'share')}",
            f"queue {quantity(engine.time_in['queue'], 's')} of {quantity(sum(engine.time_in.values()), 's')}",
            f"KV blocks held {quantity(engine.kv_usage, 'share')}, at most {quantity(engine.kv_peak, 'share')}",
            f"KV waste {quantity(engine.kv_waste, 'share')}",
            f"padding {quantity(engine.padding_waste, 'share')}",
            f"{engine.preemptions:,} preemptions",
            f"{quantity(engine.prefix_share, 'share')} of prompt tokens cached",
        ]
    else:
        told.append("the engine's steps are not known, so that batch and memory were not looked at")
    return "; ".join(told) + "."
