"""Runs on a real engine, measured as trials in virtual time are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inflight.core.types.request import Request
from inflight.engine.loop import EngineLoop
from inflight.metrics.observation import Observation, Targets
from inflight.metrics.summary import Summary
from inflight.planning.simulation import read_off
from inflight.workload.contents import Contents
from inflight.workload.driving import Driver, core_request
from inflight.workload.workload import Workload


def measure_on(
    loop: EngineLoop,
    vocab_size: int,
    workload: Workload,
    measured: tuple[float, float],
    targets: Targets | None = None,
) -> Summary:
    """Run a workload on a real engine, close the engine, and measure the run as a trial in virtual time is.

    Args:
        targets: By which requests are measured, other than those that the engine knows of.
    """
    contents = Contents(workload.entries, vocab_size, min_id=3, stand_in=True)

    def request_of(index: int, arrival: float) -> Request:
        return core_request(workload.entries[index], str(index), contents.prompt(index), arrival)

    try:
        observations = Driver(loop, workload, request_of).run()
    finally:
        loop.close()
    times = [entry.arrival for entry in workload.entries]
    contexts_grow = any(entry.after is not None for entry in workload.entries)
    sent = [one for one in observations if workload.until is None or one.sent is not None]
    return read_off(judged_by(sent, targets), measured, workload.until or max(times) - min(times), contexts_grow)[0]


def judged_by(observations: Sequence[Observation], targets: Targets | None) -> list[Observation]:
    """Return observations with these targets; None: with their own."""
    return list(observations) if targets is None else [replace(one, targets=targets) for one in observations]
