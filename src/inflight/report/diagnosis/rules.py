"""The rules of the diagnosis. Each reads one thing in the figures and returns a finding, or None.

Thresholds have their reason beside them; the sentences of findings are in `templates/findings.j2`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

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


Rule = Callable[[Evidence], Finding | None]
EngineRule = Callable[[Evidence, EngineFigures], Finding | None]


def found(name: str, weight: int = 2, **values: Any) -> Finding:
    """Return the finding of a macro."""
    title, figures, cause, change = paragraphs(name, **values)
    return Finding(title, figures, cause, change, weight)


# -- latency of requests --------------------------------------------------------------------------------------------


def growing(evidence: Evidence) -> Finding | None:
    summary = evidence.summary
    trend = summary.ttft_trend if summary.saturated else evidence.arrivals
    if trend is None or not trend.growing:
        return None
    # A result file says that TTFT rose, not by how much.
    rise = None if math.isinf(trend.rise) else trend.rise
    return found("overload", 3, rise=rise, typical=trend.typical, completed=summary.requests_per_s)


def ttft_tail(evidence: Evidence) -> Finding | None:
    ttft, engine = evidence.summary.ttft, evidence.engine
    if ttft.p50 is None or ttft.p99 is None or ttft.samples < MIN_SAMPLES or ttft.p99 < SHORT_TTFT:
        return None
    if ttft.p99 < TTFT_TAIL * ttft.p50 or evidence.summary.saturated:
        return None
    waited = 0.0 if engine is None else engine.time_in["queue"] + engine.time_in["prefill"]
    queue = engine.time_in["queue"] / waited if engine is not None and waited else None
    return found("ttft_tail", ttft=ttft, queue=queue, policy=evidence.policy)


def itl_tail(evidence: Evidence) -> Finding | None:
    """Judge the gaps between tokens, which are the times of steps and of preemptions."""
    itl, engine = evidence.summary.itl, evidence.engine
    if itl.p50 is None or itl.p99 is None or itl.samples < MIN_SAMPLES or itl.p50 <= 0 or itl.p99 < SHORT_GAP:
        return None
    if itl.p99 < ITL_TAIL * itl.p50:
        return None
    mixed = engine.mixed_step if engine is not None else None
    alone = engine.decode_step if engine is not None else None
    if not (mixed and alone and mixed.p99 and alone.p50 and mixed.p99 > SLOWER * alone.p50):
        return found("itl_tail", itl=itl)
    steps = {"mixed": mixed, "alone": alone, "longest": evidence.longest_prompt}
    return found("stalled_streams", 3, itl=itl, strategy=evidence.strategy, **steps)


# -- sharing, refusals, failures ------------------------------------------------------------------------------------


def tenants(evidence: Evidence) -> Finding | None:
    waits = evidence.tenant_ttft
    if len(waits) < 2:
        return None
    slow, fast = max(waits, key=lambda one: waits[one]), min(waits, key=lambda one: waits[one])
    if waits[slow] < UNEQUAL * waits[fast] or waits[slow] - waits[fast] < FELT:
        return None
    service = {} if evidence.engine is None else evidence.engine.service
    served = (service.get(slow, 0), service.get(fast, 0)) if evidence.engine is not None else None
    seconds = (waits[slow], waits[fast])
    return found("unequal_tenants", slow=slow, fast=fast, waits=seconds, served=served, policy=evidence.policy)


def refusals(evidence: Evidence) -> Finding | None:
    summary = evidence.summary
    if not summary.offered or summary.rejected < REFUSED * summary.offered:
        return None
    return found("refusals", summary=summary)


def failures(evidence: Evidence) -> Finding | None:
    steps = evidence.engine.failed_steps if evidence.engine is not None else 0
    if not evidence.summary.failed and not steps:
        return None
    return found("failures", 3 if steps else 2, summary=evidence.summary, steps=steps)


# -- the batch ------------------------------------------------------------------------------------------------------


def queue_reason(evidence: Evidence, engine: EngineFigures) -> Finding | None:
    total, queue = sum(engine.time_in.values()), engine.time_in["queue"]
    if not total or queue < QUEUED * total:
        return None
    ordered = sorted(engine.queued_by.items(), key=lambda one: -one[1])
    low = engine.occupancy_queued if engine.occupancy_queued is not None and engine.occupancy_queued < LOW else None
    return found(
        "queue",
        3 if queue > LOW * total else 2,
        reason=ordered[0][0],
        share=queue / total,
        reasons=[(name, seconds / queue) for name, seconds in ordered if seconds > 0.01 * queue],
        waiting=engine.waiting_mean,
        low_occupancy=low,
        reserves=evidence.settings.get("kv_allocation", "paged") != "paged",
        stalls=itl_tail(evidence) is not None,
    )


def idle(engine: EngineFigures) -> bool:
    """Whether the engine hardly computed, and kept no request waiting when it did."""
    return engine.busy < IDLE and engine.queued_share < SOMETIMES


def room(evidence: Evidence, engine: EngineFigures) -> Finding | None:
    """Judge request slots, or a whole engine, that stay empty without a queue."""
    if engine.queued_share >= SOMETIMES or (engine.occupancy >= LOW and not idle(engine)):
        return None
    return found("room", 1, engine=engine, idle=idle(engine))


def padding(evidence: Evidence, engine: EngineFigures) -> Finding | None:
    if engine.padding_waste < PADDED:
        return None
    return found("padding", 3, waste=engine.padding_waste, strategy=evidence.strategy)


def lay_ready(evidence: Evidence, engine: EngineFigures) -> Finding | None:
    """Judge static and dynamic batching: time that is not queue, prefill or decode is mostly waiting for the batch."""
    total = sum(engine.time_in.values())
    if evidence.strategy not in TOGETHER or not total or engine.time_in["other"] < LAY_READY * total:
        return None
    return found("lay_ready", share=engine.time_in["other"] / total, strategy=evidence.strategy)


# -- KV memory ------------------------------------------------------------------------------------------------------


def pressure(evidence: Evidence, engine: EngineFigures) -> Finding | None:
    queue = engine.time_in["queue"]
    blocked = engine.queued_by["blocks"] / queue if queue else 0.0
    if engine.kv_peak < FULL or (not engine.preemptions and blocked < QUEUED):
        return None
    return found("pressure", 3, engine=engine, blocked=blocked)


def preemptions(evidence: Evidence, engine: EngineFigures) -> Finding | None:
    offered = evidence.summary.offered
    if not engine.preemptions or not offered:
        return None
    recomputed = engine.recomputed_tokens / engine.computed_tokens if engine.computed_tokens else 0.0
    if engine.preemptions / offered < OFTEN and recomputed < RECOMPUTED:
        return None
    swaps = evidence.settings.get("preemption") in ("swap", "auto")
    return found("preemptions", engine=engine, offered=offered, recomputed=recomputed, swaps=swaps)


def waste(evidence: Evidence, engine: EngineFigures) -> Finding | None:
    if engine.kv_waste < WASTED or engine.kv_peak < LACKED:
        return None
    allocation = evidence.settings.get("kv_allocation", "paged")
    together = evidence.strategy in TOGETHER
    return found("waste", share=engine.kv_waste, strategy=evidence.strategy, together=together, allocation=allocation)


def prefixes(evidence: Evidence, engine: EngineFigures) -> Finding | None:
    repeated = evidence.repeated_prompts
    if repeated is None or repeated - engine.prefix_share < REPEATED:
        return None
    is_off = evidence.settings.get("prefix_caching", True) is False
    return found("prefixes", repeated=repeated, cached=engine.prefix_share, is_off=is_off, states=engine.snapshots)


def outgrown(evidence: Evidence, engine: EngineFigures) -> Finding | None:
    return found("outgrown", 3, number=engine.outgrown) if engine.outgrown else None


LATENCY_RULES: tuple[Rule, ...] = (growing, ttft_tail, itl_tail)
SHARING_RULES: tuple[Rule, ...] = (tenants, refusals, failures)
ENGINE_RULES: tuple[EngineRule, ...] = (
    *(queue_reason, room, padding, lay_ready),
    *(pressure, preemptions, waste, prefixes, outgrown),
)
# For an engine that kept no request waiting: the shape of its figures is that of single requests.
IDLE_RULES: tuple[EngineRule, ...] = (room, outgrown)
