"""KV blocks over time by owner: tenants, lanes or single requests; the rest together, what several share, what is
cached, what is free. They add up to all blocks at every moment.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from inflight.report.steps.blocks import CACHED, SHARED
from inflight.report.steps.engine_run import EngineRun
from inflight.report.steps.step_function import StepFunction

UNDER_WAY = "not ended"
OTHERS = "others"
SHARED_NAME, CACHED_NAME, FREE_NAME = "shared", "cached, held by nobody", "free"


@dataclass(frozen=True, slots=True)
class BlockOwners:
    """by: what the owners are ("tenant", "lane", "request"). owners: blocks that each alone holds, in the order in
    which they came. All together are num_blocks."""

    by: str
    owners: dict[str, StepFunction]
    shared: StepFunction
    cached: StepFunction
    free: StepFunction

    @property
    def bands(self) -> list[tuple[str, StepFunction]]:
        """From the bottom up."""
        return [
            *self.owners.items(),
            (SHARED_NAME, self.shared),
            (CACHED_NAME, self.cached),
            (FREE_NAME, self.free),
        ]


def block_owners(run: EngineRun, most: int = 5) -> BlockOwners:
    """Owners are tenants where there are several, else lanes where there are several, else single requests."""
    by, names = _names(run)
    held: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for _, owner, change in run.blocks.changes:
        if owner >= 0:
            name = names.get(owner, UNDER_WAY)
            held[name] += change
            peak[name] = max(peak[name], held[name])
    named = {name for name, _ in peak.most_common(most if len(peak) > most + 1 else most + 1)}
    top = [name for name in peak if name in named]
    changes: dict[str, list[tuple[float, float]]] = {name: [] for name in top}
    shared: list[tuple[float, float]] = []
    cached: list[tuple[float, float]] = []
    free: list[tuple[float, float]] = [(run.steps.start, run.capacity["num_blocks"])]
    for time, owner, change in run.blocks.changes:
        free.append((time, -change))
        if owner == SHARED:
            shared.append((time, change))
        elif owner == CACHED:
            cached.append((time, change))
        else:
            name = names.get(owner, UNDER_WAY)
            changes.setdefault(name if name in top else OTHERS, []).append((time, change))
    functions = {name: StepFunction.of_changes(mine) for name, mine in changes.items()}
    of_all = [StepFunction.of_changes(one) for one in (shared, cached, free)]
    return BlockOwners(by, functions, *of_all)


def _names(run: EngineRun) -> tuple[str, dict[int, str]]:
    owners = run.owner_of()
    for by in ("tenant", "lane"):
        names = {number: str(getattr(request, by)) or "(no name)" for number, request in owners.items()}
        if len(set(names.values())) > 1:
            return by, names
    return "request", {number: request.request_id for number, request in owners.items()}
