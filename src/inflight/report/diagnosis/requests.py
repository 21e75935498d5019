"""Rules on what requests see: latency that grows or has a long tail; who gets what, who is refused, what fails."""

from __future__ import annotations

import math

from inflight.report.charts.quantity import quantity
from inflight.report.diagnosis.finding import Evidence, Finding

TTFT_TAIL = 5.0  # p99 / p50; exponential waiting alone gives 6.6, so that less is nothing to act on where TTFT is short
ITL_TAIL = 4.0  # p99 / p50: one gap in a hundred that a reader sees as a stop
FEWEST = 50  # samples, for a p99 to be looked at
SHORT_TTFT = 0.2  # seconds: a p99 below is no tail that anybody feels
SHORT_GAP = 0.03  # seconds: a p99 gap below is as fast as anybody reads
SLOWER = 2.5  # steps with prompts beside decodes, against steps of decodes alone


def growing(evidence: Evidence) -> Finding | None:
    summary = evidence.summary
    trend = summary.ttft_trend if summary.saturated else evidence.arrivals
    if trend is None or not trend.growing:
        return None
    rose = (
        f"TTFT rose by {quantity(trend.rise, 's')} while requests came (its middle is {quantity(trend.typical, 's')})"
    )
    if math.isinf(trend.rise):  # a result file says that it rose, not by how much
        rose = "TTFT was still growing when the run ended"
    return Finding(
        "More was offered than can be served",
        f"{rose}; {quantity(summary.requests_per_s, 'requests/s')} were completed.",
        "The queue grows as long as the load lasts, so that percentiles tell how long the run was. What was "
        "completed is the capacity of this setting.",
        "Offer less, or refuse in time: --admission slo with --ttft-target, or --max-queued-requests. More capacity: "
        "see what the queue waited for.",
        weight=3,
    )


def ttft_tail(evidence: Evidence) -> Finding | None:
    ttft, engine = evidence.summary.ttft, evidence.engine
    if ttft.p50 is None or ttft.p99 is None or ttft.samples < FEWEST or ttft.p99 < SHORT_TTFT:
        return None
    if ttft.p99 < TTFT_TAIL * ttft.p50 or evidence.summary.saturated:
        return None
    queue = ""
    if engine is not None and (waited := engine.time_in["queue"] + engine.time_in["prefill"]):
        share = quantity(engine.time_in["queue"] / waited, "share")
        queue = f" Of the time before first tokens, {share} was spent in the queue."
    change = "--policy sjf lets short work pass long work; --policy deadline serves who is closest to its target"
    if evidence.policy not in ("", "fcfs"):
        change = f"Under --policy {evidence.policy} the tail is the price of its order; --policy fcfs has a shorter one"
    return Finding(
        "A few wait far longer than most for their first token",
        f"TTFT p99 is {quantity(ttft.p99, 's')}, {ttft.p99 / ttft.p50:.1f} times its p50 of "
        f"{quantity(ttft.p50, 's')} (over {quantity(ttft.samples)} requests).{queue}",
        "Requests come in bursts, or wait behind much longer ones.",
        f"{change}; lanes ([lanes.NAME] in --config) keep bulk work away from interactive work.",
    )


def itl_tail(evidence: Evidence) -> Finding | None:
    """Gaps between tokens are the steps' times, and a preemption's absence."""
    itl, engine = evidence.summary.itl, evidence.engine
    if itl.p50 is None or itl.p99 is None or itl.samples < FEWEST or itl.p50 <= 0 or itl.p99 < SHORT_GAP:
        return None
    if itl.p99 < ITL_TAIL * itl.p50:
        return None
    seen = f"ITL p99 is {quantity(itl.p99, 's')}, {itl.p99 / itl.p50:.1f} times its p50 of {quantity(itl.p50, 's')}."
    mixed = engine.mixed_step if engine is not None else None
    alone = engine.decode_step if engine is not None else None
    if not (mixed and alone and mixed.p99 and alone.p50 and mixed.p99 > SLOWER * alone.p50):
        cause = "Streams pause now and then: long prompts in the same step, preemptions, or a slow way to the client."
        change = "--strategy chunked with a small --max-num-batched-tokens, or --strategy adaptive with --itl-target."
        return Finding("Streams stand still now and then", seen, cause, change)
    steps = (
        f" Steps with prompt tokens beside decodes take {quantity(mixed.p99, 's')} at p99, steps of decodes alone "
        f"{quantity(alone.p50, 's')} at p50; the longest prompt has {quantity(evidence.longest_prompt)} tokens."
    )
    if evidence.strategy == "continuous":
        change = (
            "--strategy chunked computes prompts in pieces beside the decodes; --max-num-batched-tokens bounds a step."
        )
    elif evidence.strategy == "adaptive":
        change = "A lower --itl-target shortens steps further."
    else:
        change = (
            "A smaller --max-num-batched-tokens, or --strategy adaptive with --itl-target, which sets it step by step."
        )
    return Finding(
        "Prompts stall the running streams", seen + steps, "Every stream waits for the whole step.", change, 3
    )


UNEQUAL = 3.0  # mean TTFT of the tenant that waits longest, against that of the one that waits least
FELT = 0.1  # seconds: a difference below is none
REFUSED = 0.01  # share of the offered


def tenants(evidence: Evidence) -> Finding | None:
    waits = evidence.tenant_ttft
    if len(waits) < 2:
        return None
    worst, best = max(waits, key=lambda one: waits[one]), min(waits, key=lambda one: waits[one])
    if waits[worst] < UNEQUAL * waits[best] or waits[worst] - waits[best] < FELT:
        return None
    served = ""
    if evidence.engine is not None:
        service = evidence.engine.service
        served = f" They were served {quantity(service.get(worst, 0))} and {quantity(service.get(best, 0))} tokens."
    change = "--policy fair shares rows and tokens by tenant; --tenant-weight sets the shares."
    if evidence.policy == "fair":
        change = "Under --policy fair this follows from --tenant-weight and from how much each asks for."
    return Finding(
        "Tenants wait very differently",
        f"Mean TTFT is {quantity(waits[worst], 's')} for {worst or '(no name)'} and {quantity(waits[best], 's')} for "
        f"{best or '(no name)'}.{served}",
        "Who sends much, or in bursts, fills the queue that all stand in.",
        change,
    )


def refusals(evidence: Evidence) -> Finding | None:
    summary = evidence.summary
    if not summary.offered or summary.rejected < REFUSED * summary.offered:
        return None
    return Finding(
        "Requests are refused",
        f"{quantity(summary.rejected)} of {quantity(summary.offered)} offered requests "
        f"({quantity(summary.rejected / summary.offered, 'share')}) were refused; attainment over all offered is "
        f"{quantity(summary.attainment, 'share')}.",
        "Admission control holds what waits within bounds: the load is above capacity, or the bounds are tight.",
        "For longer queues instead of refusals raise --max-queued-requests, --max-queued-tokens or --ttft-target; "
        "for fewer of both, offer less or give more capacity.",
    )


def failures(evidence: Evidence) -> Finding | None:
    summary, engine = evidence.summary, evidence.engine
    broken = engine.failed_steps if engine is not None else 0
    if not summary.failed and not broken:
        return None
    steps = f", and {quantity(broken)} steps broke" if broken else ""
    return Finding(
        "Requests failed",
        f"{quantity(summary.failed)} of {quantity(summary.offered)} offered requests did not come to their end{steps}.",
        "Clients gave up, time ran out, what was asked for can never be served, or a step broke.",
        "The server's log names each (--log-level info); --request-timeout bounds a call.",
        weight=3 if broken else 2,
    )


RULES = (growing, ttft_tail, itl_tail)
SHARING = (tenants, refusals, failures)
