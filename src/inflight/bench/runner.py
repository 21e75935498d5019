"""Runs one workload after another against the same server, each with prompts that the runs before have not cached; and
the throughput-latency curve: one run at each of several rates or concurrencies.

Knows how a run is sent and measured; which workloads are run, and what their figures decide, others know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from inflight.bench.client_types import Progress
from inflight.bench.preparing import Prepared
from inflight.bench.run import Measured, Send, Warmup, measure
from inflight.workload.workload import Workload


@dataclass(slots=True)
class Runner:
    """prompt_seed: of the first run's contents; each further run takes the next. interrupt: whether to stop."""

    prepared: Prepared
    send: Send
    warmup: Warmup
    prompt_seed: int
    processes: int = 1
    progress: Callable[[Progress], None] | None = None
    interrupt: Callable[[], bool] | None = None
    runs: int = field(default=0, init=False)

    def run(self, workload: Workload) -> Measured:
        """Raises BenchError where nothing is left to be measured."""
        bodies = self.prepared.bodies(workload, self.prompt_seed + self.runs)
        self.runs += 1
        result = self.send(
            workload,
            self.prepared.target,
            bodies,
            processes=self.processes,
            progress=self.progress,
            interrupt=self.interrupt,
        )
        return measure(workload, result, self.warmup)


@dataclass(frozen=True, slots=True)
class Point:
    """value: requests/s, or concurrency."""

    value: float
    measured: Measured


def sweep(
    run: Callable[[float], Measured], values: Sequence[float], report: Callable[[Point], None] = lambda point: None
) -> list[Point]:
    """In the order of the values; ends after the run that was interrupted."""
    points: list[Point] = []
    for value in values:
        points.append(Point(value, run(value)))
        report(points[-1])
        if points[-1].measured.partial:
            break
    return points
