"""How many waited and how many ran, over time; who was served, over time. From sequences' joins and leaves.

A request waits with all its samples from its arrival; one that lost its row waits again until it is back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inflight.report.steps.engine_run import EndedRequest, EngineRun
from inflight.report.steps.step_function import StepFunction


@dataclass(frozen=True, slots=True)
class SequencePhase:
    """A stretch of a sequence's life: "queue" (before its first row), "preempted" (between rows) or "row"."""

    sequence: int
    kind: str
    start: float
    end: float


def phases(run: EngineRun) -> Iterable[SequencePhase]:
    """In the order of the sequences. One without a line of its own (cut off) has no queue: its arrival is not known."""
    owners = run.owner_of()
    end = run.steps.end
    for number, owner in owners.items():
        if number not in run.sequences.timelines:
            yield SequencePhase(number, "queue", owner.arrival, owner.ended)
    for number, timeline in run.sequences.timelines.items():
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
    """Sequences without a row, before their first one or between two."""
    return _count(run, ("queue", "preempted"))


def running(run: EngineRun) -> StepFunction:
    """Sequences with a row."""
    return _count(run, ("row",))


def preempted(run: EngineRun) -> StepFunction:
    return _count(run, ("preempted",))


def service(run: EngineRun, owner: str = "tenant") -> dict[str, StepFunction]:
    """Tokens served so far by tenant (or lane): prompts when their first token came, outputs as they came."""
    changes: dict[str, list[tuple[float, float]]] = {}
    for request in run.requests:
        mine = changes.setdefault(_name(request, owner), [])
        for place, number in enumerate(request.sequences):
            timeline = run.sequences.timelines.get(number)
            times = timeline.token_times if timeline is not None else ()
            if times and place == 0:
                mine.append((times[0], request.prompt_tokens))
            mine += [(time, 1) for time in times]
    return {name: StepFunction.of_changes(mine) for name, mine in changes.items()}


def _name(request: EndedRequest, owner: str) -> str:
    return str(getattr(request, owner))


def _count(run: EngineRun, kinds: tuple[str, ...]) -> StepFunction:
    changes: list[tuple[float, float]] = []
    for phase in phases(run):
        if phase.kind in kinds and phase.end > phase.start:
            changes += [(phase.start, 1), (phase.end, -1)]
    return StepFunction.of_changes(changes)
