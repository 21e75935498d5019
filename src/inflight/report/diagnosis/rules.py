"""The rules of the diagnosis, from figures to findings.

Thresholds have their reason beside them; the sentences of findings are in `templates/findings.j2`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from inflight.metrics.definitions import Percentiles
from inflight.metrics.summary import Summary, Trend
from inflight.report.engine_figures import EngineFigures
from inflight.report.rendering import paragraphs

TTFT_TAIL = 5.0  # p99 / p50; exponential waiting alone gives 6.6, and a short TTFT with less needs no change
ITL_TAIL = 4.0  # p99 / p50: one gap in a hundred that a reader notices
MIN_SAMPLES = 50  # for a p99 to be judged
SHORT_TTFT = 0.2  # seconds: a p99 below is not noticed
SHORT_GAP = 0.03  # seconds: a p99 gap below is as fast as people read
SLOWER = 2.5  # steps with prompts beside decodes, against steps of decodes alone
UNEQUAL = 3.0  # mean TTFT of the tenant that waits longest, against that of the one that waits shortest
FELT = 0.1  # seconds: a difference below is not noticed
REFUSED = 0.01  # share of the offered
QUEUED = 0.2  # share of requests' time, and of the queue's time that waits for blocks, that is worth a setting
LOW = 0.5  # occupancy
IDLE = 0.1  # share of the time in steps, below which the figures are those of single requests, not of a load
SOMETIMES = 0.1  # share of the busy time in which requests waited
PADDED = 0.1  # share of token slots
LAY_READY = 0.2  # share of requests' time, between an answer's last token and its batch's end
TOGETHER = ("static", "dynamic")
FULL = 0.95  # share of the blocks in use
OFTEN = 0.05  # preemptions by request
RECOMPUTED = 0.02  # recomputed share of the tokens computed
LACKED = 0.5  # share of the blocks in use at most, below which waste harms no request
WASTED = 0.3  # share of allocated token slots; a half-filled last block of short requests makes 10 to 20 %
REPEATED = 0.2  # share of prompt tokens that could have been found and were not


@dataclass(frozen=True, slots=True)
class Finding:
    """figures: the evidence, with numbers. cause: its usual meaning. change: the setting to change and in which
    direction, with options by their long names. weight: 3 first, 1 last."""

    title: str
    figures: str
    cause: str
    change: str
    weight: int = 2


@dataclass(frozen=True, slots=True)
class Evidence:
    """Figures that rules read: of one run, or means of several repeats.

    settings: values in force, by name as in the record ("strategy", "max_num_seqs", …). repeated_prompts: share of
    prompt tokens that an unbounded prefix cache would have found; None: not known. tenant_ttft: mean seconds of each
    tenant that has enough requests. arrivals: whether TTFT grew from the first arrival to the last; the summary's own
    window may end long after that.
    """

    summary: Summary
    engine: EngineFigures | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    longest_prompt: int = 0
    repeated_prompts: float | None = None
    tenant_ttft: Mapping[str, float] = field(default_factory=dict)
    arrivals: Trend | None = None

    @property
    def strategy(self) -> str:
        return str(self.settings.get("strategy", ""))

    @property
    def policy(self) -> str:
        return str(self.settings.get("policy", ""))


def found(name: str, weight: int = 2, **values: Any) -> Finding:
    """Return the finding of a macro."""
    title, figures, cause, change = paragraphs(name, **values)
    return Finding(title, figures, cause, change, weight)


def findings(evidence: Evidence) -> Iterator[Finding]:
    """Apply all rules. Of an engine that hardly computed, and kept no request waiting when it did, only room, cut
    answers, refusals and failures are judged: the shape of its other figures is that of single requests."""
    engine = evidence.engine
    is_idle = engine is not None and engine.busy < IDLE and engine.queued_share < SOMETIMES
    if not is_idle:
        yield from _latency(evidence)
    if engine is not None:
        if not is_idle:
            yield from _queue(evidence, engine)
        if engine.queued_share < SOMETIMES and (engine.occupancy < LOW or is_idle):
            yield found("room", 1, engine=engine, idle=is_idle)
        if not is_idle:
            yield from _work(evidence, engine)
            yield from _memory(evidence, engine)
        if engine.outgrown:
            yield found("outgrown", 3, number=engine.outgrown)
    if not is_idle:
        yield from _tenants(evidence)
    yield from _outcomes(evidence)


def _latency(evidence: Evidence) -> Iterator[Finding]:
    summary, engine = evidence.summary, evidence.engine
    trend = summary.ttft_trend if summary.saturated else evidence.arrivals
    if trend is not None and trend.growing:
        # A result file says that TTFT rose, not by how much.
        rise = None if math.isinf(trend.rise) else trend.rise
        yield found("overload", 3, rise=rise, typical=trend.typical, completed=summary.requests_per_s)
    ttft, itl = summary.ttft, summary.itl
    if not summary.saturated and _has_tail(ttft, TTFT_TAIL, SHORT_TTFT):
        waited = 0.0 if engine is None else engine.time_in["queue"] + engine.time_in["prefill"]
        queue = engine.time_in["queue"] / waited if engine is not None and waited else None
        yield found("ttft_tail", ttft=ttft, queue=queue, policy=evidence.policy)
    if _has_tail(itl, ITL_TAIL, SHORT_GAP):  # gaps are the times of steps and of preemptions
        mixed, alone = (engine.mixed_step, engine.decode_step) if engine is not None else (None, None)
        if mixed and alone and mixed.p99 and alone.p50 and mixed.p99 > SLOWER * alone.p50:
            steps = {"mixed": mixed, "alone": alone, "longest": evidence.longest_prompt}
            yield found("stalled_streams", 3, itl=itl, strategy=evidence.strategy, **steps)
        else:
            yield found("itl_tail", itl=itl)


def _has_tail(figures: Percentiles, ratio: float, short: float) -> bool:
    """Whether the p99 is far above the p50, and long enough to be noticed."""
    p50, p99 = figures.p50, figures.p99
    if p50 is None or p99 is None or figures.samples < MIN_SAMPLES or p99 < short:
        return False
    return p50 > 0 and p99 >= ratio * p50


def _queue(evidence: Evidence, engine: EngineFigures) -> Iterator[Finding]:
    total, queue = sum(engine.time_in.values()), engine.time_in["queue"]
    if not total or queue < QUEUED * total:
        return
    ordered = sorted(engine.queued_by.items(), key=lambda one: -one[1])
    low = engine.occupancy_queued if engine.occupancy_queued is not None and engine.occupancy_queued < LOW else None
    yield found(
        "queue",
        3 if queue > LOW * total else 2,
        reason=ordered[0][0],
        share=queue / total,
        reasons=[(name, seconds / queue) for name, seconds in ordered if seconds > 0.01 * queue],
        waiting=engine.waiting_mean,
        low_occupancy=low,
        reserves=_allocation(evidence).startswith("reserve"),
        stalls=_has_tail(evidence.summary.itl, ITL_TAIL, SHORT_GAP),
    )


def _work(evidence: Evidence, engine: EngineFigures) -> Iterator[Finding]:
    if engine.padding_waste >= PADDED:
        yield found("padding", 3, waste=engine.padding_waste, strategy=evidence.strategy)
    # Under static and dynamic batching, time that is not queue, prefill or decode is mostly waiting for the batch.
    total, other = sum(engine.time_in.values()), engine.time_in["other"]
    if evidence.strategy in TOGETHER and total and other >= LAY_READY * total:
        yield found("lay_ready", share=other / total, strategy=evidence.strategy)


def _memory(evidence: Evidence, engine: EngineFigures) -> Iterator[Finding]:
    queue, offered = engine.time_in["queue"], evidence.summary.offered
    blocked = engine.queued_by["blocks"] / queue if queue else 0.0
    if engine.kv_peak >= FULL and (engine.preemptions or blocked >= QUEUED):
        yield found("pressure", 3, engine=engine, blocked=blocked)
    recomputed = engine.recomputed_tokens / engine.computed_tokens if engine.computed_tokens else 0.0
    if engine.preemptions and offered and (engine.preemptions >= OFTEN * offered or recomputed >= RECOMPUTED):
        swaps = evidence.settings.get("preemption") in ("swap", "auto")
        paged = _allocation(evidence) == "paged" and evidence.strategy not in TOGETHER
        yield found("preemptions", engine=engine, offered=offered, recomputed=recomputed, swaps=swaps, paged=paged)
    if engine.kv_waste >= WASTED and engine.kv_peak >= LACKED:
        strategy, allocation = evidence.strategy, _allocation(evidence)
        together = strategy in TOGETHER
        yield found("waste", share=engine.kv_waste, strategy=strategy, together=together, allocation=allocation)
    repeated, cached = evidence.repeated_prompts, engine.prefix_share
    if repeated is not None and repeated - cached >= REPEATED:
        is_off = evidence.settings.get("prefix_caching", True) is False
        yield found("prefixes", repeated=repeated, cached=cached, is_off=is_off, states=engine.snapshots)


def _allocation(evidence: Evidence) -> str:
    return str(evidence.settings.get("kv_allocation", "paged"))


def _tenants(evidence: Evidence) -> Iterator[Finding]:
    waits, engine = evidence.tenant_ttft, evidence.engine
    if len(waits) < 2:
        return
    slow, fast = max(waits, key=lambda one: waits[one]), min(waits, key=lambda one: waits[one])
    if waits[slow] >= UNEQUAL * waits[fast] and waits[slow] - waits[fast] >= FELT:
        served = None if engine is None else (engine.service.get(slow, 0), engine.service.get(fast, 0))
        seconds = (waits[slow], waits[fast])
        yield found("unequal_tenants", slow=slow, fast=fast, waits=seconds, served=served, policy=evidence.policy)


def _outcomes(evidence: Evidence) -> Iterator[Finding]:
    summary = evidence.summary
    if summary.offered and summary.rejected >= REFUSED * summary.offered:
        yield found("refusals", summary=summary)
    steps = evidence.engine.failed_steps if evidence.engine is not None else 0
    if summary.failed or steps:
        yield found("failures", 3 if steps else 2, summary=summary, steps=steps)
