"""Words that several answers of planning share: milliseconds, and how an SLO was broken."""

from __future__ import annotations

import math

from inflight.counted import counted
from inflight.planning.demand import Demand
from inflight.planning.outlook import Strategies
from inflight.planning.simulation import Trial

NOT_CALIBRATED = "not calibrated on your hardware: step times come from data sheets and published efficiencies"


def milliseconds(seconds: float) -> str:
    return "-" if math.isnan(seconds) else "endless" if math.isinf(seconds) else f"{seconds * 1e3:,.0f} ms"


def how_broken(trial: Trial) -> str:
    """The worst of what a trial did not keep. A percentile of a saturated one would tell the length of the run."""
    if trial.saturated:
        return "it is saturated, waiting grows without end"
    if not trial.broken:
        return "requests are refused" if trial.unserved else "all promises are kept"
    slo, value = trial.broken[0]
    return f"{slo.name} is {milliseconds(value)}"


def what_it_needs(one: Strategies, demand: Demand) -> str:
    """Of one batching strategy."""
    if one.candidate is None:
        return f"not tried: {one.reason}"
    capacity = one.candidate.capacity
    if not one.candidate.rate:
        at = "" if capacity.broken is None else f": even at {capacity.broken.rate:.3g}/s {how_broken(capacity.broken)}"
        return "keeps the promises at no rate" + at
    parts = [f"{one.candidate.rate:.3g} requests/s each"]
    if capacity.held is not None:
        p99 = {name: capacity.held.percentiles[name][2] for name in ("ttft", "itl")}
        known = [f"{name.upper()} p99 {milliseconds(value)}" for name, value in p99.items() if math.isfinite(value)]
        parts += [f"there {', '.join(known)}"] if known else []
    return f"{counted(one.candidate.replicas(demand), 'replica')} ({'; '.join(parts)})"
