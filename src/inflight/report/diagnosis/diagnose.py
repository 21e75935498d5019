"""Apply all rules to the repeats of one setting at one load: findings by weight, or the figures that were read."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from inflight.metrics.summary import Trend, trend
from inflight.report.diagnosis import rules
from inflight.report.diagnosis.rules import Evidence, Finding
from inflight.report.engine_figures import EngineFigures
from inflight.report.rendering import paragraphs
from inflight.report.run import Option, Run

MIN_REQUESTS = 10  # of a tenant, for its latency to mean something


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """looked_at: the figures that the rules read; shown where there is no finding."""

    findings: tuple[Finding, ...]
    looked_at: str


def diagnose(runs: Sequence[Run], engines: Sequence[EngineFigures | None], options: Mapping[str, Option]) -> Diagnosis:
    """Judge the means over repeats, as the tables show them. engines: of each run, where its steps are known."""
    evidence = mean_of([_evidence(run, engine, options) for run, engine in zip(runs, engines, strict=True)])
    if not all(run.valid for run in runs):
        return Diagnosis((rules.found("invalid", 3),), _looked_at(evidence))
    return judge(evidence)


def judge(evidence: Evidence) -> Diagnosis:
    found = sorted(rules.findings(evidence), key=lambda one: -one.weight)
    return Diagnosis(tuple(found), _looked_at(evidence))


def mean_of(repeats: Sequence[Any]) -> Any:
    """Return the same dataclass, mapping or number with the mean of each number in it, over repeats that have it; of a
    value without a mean the first, of trends the one that rises most surely."""
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
    requests = run.engine.requests if run.engine is not None else ()
    prompts = sum(request.prompt_tokens for request in requests)
    ttfts = [(one.intended, value) for one in run.observations if (value := one.ttft) is not None]
    by_tenant: dict[str, list[float]] = defaultdict(list)
    for one in run.observations:
        if one.outcome == "completed" and one.ttft is not None:
            by_tenant[one.tenant].append(one.ttft)
    return Evidence(
        summary=run.summary,
        engine=figures,
        settings={name: option.value for name, option in options.items()},
        longest_prompt=max((one.prompt_tokens for one in run.observations), default=0),
        repeated_prompts=sum(request.repeated_tokens for request in requests) / prompts if prompts else None,
        tenant_ttft={name: statistics.fmean(some) for name, some in by_tenant.items() if len(some) >= MIN_REQUESTS},
        arrivals=trend(ttfts, min(ttfts)[0], max(ttfts)[0]) if ttfts else None,
    )


def _looked_at(evidence: Evidence) -> str:
    has_trend = bool(evidence.arrivals or evidence.summary.ttft_trend)
    (text,) = paragraphs("looked_at", summary=evidence.summary, engine=evidence.engine, has_trend=has_trend)
    return text
