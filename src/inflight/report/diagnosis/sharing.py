"""Rules on who gets what: tenants, refusals, failures."""

from __future__ import annotations

from inflight.report.charts.quantity import quantity
from inflight.report.diagnosis.finding import Evidence, Finding

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
        "Clients gave up, time ran out, or a step broke.",
        "The server's log names each (--log-level info); --request-timeout bounds a call.",
        weight=3 if broken else 2,
    )


RULES = (tenants, refusals, failures)
