"""Waiting and running sequences, service and owners of KV blocks over time.

A request waits with all its samples from its arrival; a preempted one waits again until it is back in a row. Blocks are
counted by owner (tenants, lanes or single requests; the rest together), shared, cached and free: together always all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from inflight.records.block_owners import CACHED, SHARED
from inflight.report.steps.engine_run import EngineRun
from inflight.report.steps.series import StepFunction


@dataclass(frozen=True, slots=True)
class SequencePhase:
    """A stretch of a sequence's life: "queue" (before its first row), "preempted" (between rows) or "row"."""

    sequence: int
    kind: str
    start: float
    end: float


def phases(run: EngineRun) -> Iterable[SequencePhase]:
    """Yield phases in the order of the sequences. One without a line of its own (cut off) has no queue: its arrival is
    not known."""
    owners = run.owner_of()
    end = run.steps.end
    for number, owner in owners.items():
        if number not in run.rows.timelines:
            yield SequencePhase(number, "queue", owner.arrival, owner.ended)
    for number, timeline in run.rows.timelines.items():
        request = owners.get(number)
        over = request.ended if request is not None else end
        if request is not None:
            yield SequencePhase(number, "queue", request.arrival, max(request.arrival, timeline.joined[0]))
        for index, joined in enumerate(timeline.joined):
            left = timeline.left[index] if index < len(timeline.left) else over
            yield SequencePhase(number, "row", joined, left)
            if index + 1 < len(timeline.joined):
                yield SequencePhase(number, "preempted", left, timeline.joined[index + 1])


def waiting(run: EngineRun) -> StepFunction:
    """Return the sequences without a row, before their first one or between two."""
    return _count(run, ("queue", "preempted"))


def running(run: EngineRun) -> StepFunction:
    """Return the sequences with a row."""
    return _count(run, ("row",))


def service(run: EngineRun, owner: str = "tenant") -> dict[str, StepFunction]:
    """Return the tokens served so far by tenant (or lane): prompts at their first token, outputs as they came."""
    changes: dict[str, list[tuple[float, float]]] = {}
    for request in run.requests:
        mine = changes.setdefault(str(getattr(request, owner)), [])
        for index, number in enumerate(request.sequences):
            timeline = run.rows.timelines.get(number)
            times = timeline.token_times if timeline is not None else ()
            if times and index == 0:
                mine.append((times[0], request.prompt_tokens))
            mine += [(time, 1) for time in times]
    return {name: StepFunction.of_changes(mine) for name, mine in changes.items()}


def _count(run: EngineRun, kinds: tuple[str, ...]) -> StepFunction:
    lasting = [phase for phase in phases(run) if phase.kind in kinds and phase.end > phase.start]
    return StepFunction.of_changes(one for phase in lasting for one in ((phase.start, 1), (phase.end, -1)))


NOT_ENDED = "not ended"
OTHERS = "others"
SHARED_NAME, CACHED_NAME = "shared", "cached, unused"


@dataclass(frozen=True, slots=True)
class BlockOwners:
    """by: the kind of owners ("tenant", "lane", "request"). owners: blocks of each alone, in the order in which they
    came. All together are num_blocks."""

    by: str
    owners: dict[str, StepFunction]
    shared: StepFunction
    cached: StepFunction
    free: StepFunction


def block_owners(run: EngineRun, most: int = 5) -> BlockOwners:
    """Return the blocks of tenants where there are several, else of lanes where there are several, else of requests."""
    by, names = _names(run)
    held: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for _, owner, change in run.blocks.changes:
        if owner >= 0:
            name = names.get(owner, NOT_ENDED)
            held[name] += change
            peak[name] = max(peak[name], held[name])
    named = {name for name, _ in peak.most_common(most + (len(peak) <= most + 1))}
    top = [name for name in peak if name in named]
    changes: dict[str, list[tuple[float, float]]] = {name: [] for name in top}
    shared: list[tuple[float, float]] = []
    cached: list[tuple[float, float]] = []
    free: list[tuple[float, float]] = [(run.steps.start, run.capacity.num_blocks)]
    for time, owner, change in run.blocks.changes:
        free.append((time, -change))
        if owner == SHARED:
            shared.append((time, change))
        elif owner == CACHED:
            cached.append((time, change))
        else:
            name = names.get(owner, NOT_ENDED)
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
