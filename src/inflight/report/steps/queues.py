"""How many waited and how many ran, over time; who was served, over time. From sequences' joins and leaves.

A request waits with all its samples from its arrival; one that lost its row waits again until it is back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inflight.report.steps.engine_run import Account, EngineRun
from inflight.report.steps.step_function import StepFunction


@dataclass(frozen=True, slots=True)
class Stay:
    """A stretch of a sequence's life: "queue" (before its first row), "preempted" (between rows) or "row"."""

    sequence: int
    kind: str
    start: float
    end: float


def stays(run: EngineRun) -> Iterable[Stay]:
    """In the order of the sequences. One without a line of its own (cut off) has no queue: its arrival is not known."""
    owners = run.owner_of()
    end = run.steps.end
    for number, owner in owners.items():
        if number not in run.sequences.stories:
            yield Stay(number, "queue", owner.arrival, owner.ended)
    for number, story in run.sequences.stories.items():
        account = owners.get(number)
        over = account.ended if account is not None else end
        if account is not None:
            yield Stay(number, "queue", account.arrival, max(account.arrival, story.joined[0]))
        for index, joined in enumerate(story.joined):
            left = story.left[index] if index < len(story.left) else over
            yield Stay(number, "row", joined, left)
            if index + 1 < len(story.joined):
                yield Stay(number, "preempted", left, story.joined[index + 1])


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
    for account in run.accounts:
        mine = changes.setdefault(_name(account, owner), [])
        for place, number in enumerate(account.sequences):
            story = run.sequences.stories.get(number)
            times = story.token_times if story is not None else ()
            if times and place == 0:
                mine.append((times[0], account.prompt_tokens))
            mine += [(time, 1) for time in times]
    return {name: StepFunction.of_changes(mine) for name, mine in changes.items()}


def _name(account: Account, owner: str) -> str:
    return str(getattr(account, owner))


def _count(run: EngineRun, kinds: tuple[str, ...]) -> StepFunction:
    changes: list[tuple[float, float]] = []
    for stay in stays(run):
        if stay.kind in kinds and stay.end > stay.start:
            changes += [(stay.start, 1), (stay.end, -1)]
    return StepFunction.of_changes(changes)
