"""What another router before the replicas would bring: where prompts share their beginnings, one that sends them where
they are cached.

Deployments are sized behind a least-loaded router, which every gateway has. Knows searches behind other routers; not
what a router is (`routing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inflight.planning.search import find_capacity
from inflight.planning.simulation import ROUTER, Trial
from inflight.planning.sizing import ROUGH, ROUGHLY, Candidate, Progress, TrialRunner, whole_engines

ROUTERS = ("round-robin", ROUTER, "prefix-aware")
WORTH_ASKING = 0.01  # of the prompts' tokens that earlier ones had
_TRIALS = 5


@dataclass(frozen=True, slots=True)
class RouterNeed:
    """trial: at the highest rate that was found to keep the SLOs behind this router; None: none was. replicas: that the
    demand takes then. simulated: replicas behind it in the trial."""

    router: str
    trial: Trial | None
    replicas: int | None
    simulated: int

    @property
    def cached(self) -> float:
        """Share of the prompts' tokens that was found cached."""
        return 0.0 if self.trial is None else self.trial.cached


def router_needs(runner: TrialRunner, best: Candidate, progress: Progress) -> list[RouterNeed]:
    """Of each router, found alike; none where there is one replica, or nothing that a router could know."""
    if best.pooled < 2 or runner.traffic.shared < WORTH_ASKING:
        return []
    found = []
    for router in ROUTERS:
        progress(f"Router {router}")

        def trial(rate: float, router: str = router) -> Trial:
            return runner.run(best, rate, reads=ROUGHLY, router=router)

        held = find_capacity(trial, best.rate, ROUGH, _TRIALS, trickle=False).held
        demand = runner.question.demand.rate
        replicas = None if held is None else whole_engines(demand / held.rate)
        found.append(RouterNeed(router, held, replicas, best.pooled))
    return found


def describe(needs: Sequence[RouterNeed]) -> list[str]:
    """A line each, and which one pays."""
    lines = [_line(one) for one in needs]
    known = {one.router: one.replicas for one in needs if one.replicas is not None}
    usual, fewest = known.get(ROUTER), min(known, key=lambda router: known[router], default=ROUTER)
    if usual is not None and known[fewest] < usual:
        lines.append(f"{fewest} pays: it takes {usual - known[fewest]:,} fewer than {ROUTER}, roughly")
    elif known:
        lines.append(f"none takes fewer than {ROUTER}, as far as such short trials tell")
    return lines


def _line(need: RouterNeed) -> str:
    if need.trial is None:
        return f"{need.router:<14} no rate was found that keeps the promises"
    return (
        f"{need.router:<14} about {need.replicas:,}, {need.trial.rate:.3g} requests/s each, {need.cached:.0%} of the "
        f"prompts' tokens found cached among {need.simulated}"
    )
