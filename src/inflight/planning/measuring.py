"""A workload on a real engine, read as a trial in virtual time is read.

Knows the loop and workloads; how an engine is made, its caller knows.
"""

from __future__ import annotations

from inflight.engine.loop import EngineLoop
from inflight.metrics.summary import Summary
from inflight.planning.simulation import read_off
from inflight.workload.contents import Contents
from inflight.workload.driving import Driver
from inflight.workload.requests import core_request
from inflight.workload.workload import Workload


def measure_on(loop: EngineLoop, vocab_size: int, workload: Workload, measured: tuple[float, float]) -> Summary:
    """Runs it to its end and closes the engine. measured: shares of the arrivals' span between which it is read."""
    contents = Contents(workload.entries, vocab_size, floor=3, stand_in=True)
    try:
        observations = Driver(
            loop,
            workload,
            lambda index, arrival: core_request(workload.entries[index], str(index), contents.prompt(index), arrival),
        ).run()
    finally:
        loop.close()
    return read_off(observations, measured)[0]
