"""Programs: the runs of agents, each of several requests, and how long each takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from inflight.metrics.definitions import jct
from inflight.metrics.observation import Observation


def completion_times(
    observations: Iterable[Observation], holds: Callable[[float], bool] = lambda time: True
) -> list[float]:
    """Return the job completion times of programs whose requests all completed, in the order in which they began.

    A program with a name alone counts: a request without one is a program by itself, whose time is its E2E.

    Args:
        observations: In any order.
        holds: Whether a program that began then counts.
    """
    programs: dict[tuple[str, str], list[Observation]] = {}
    for one in observations:
        if one.program:
            programs.setdefault((one.tenant, one.program), []).append(one)
    times = []
    for requests in programs.values():
        begins = min(one.intended for one in requests)
        if holds(begins) and all(one.outcome == "completed" for one in requests):
            times.append((begins, jct(begins, max(one.intended + one.e2e for one in requests))))
    return [seconds for _, seconds in sorted(times)]
