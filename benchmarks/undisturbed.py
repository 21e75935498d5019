"""Real runs beside a simulation, tried again where the machine was not as it was in calibration.

A run is disturbed where its threads waited for a processor, and where memory was not as fast as in calibration, as the
decodes of a lone request after it show: each reads all weights once. Guests of one host share its memory, whose speed
may change for minutes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.comparison import log_line
from inflight.core.types.request import Request
from inflight.engine.loop import EngineLoop
from inflight.metrics.observation import Observation
from inflight.metrics.summary import Summary
from inflight.simulate.fitted import FittedModel
from inflight.workload.classes import TrafficClass
from inflight.workload.driving import Driver, core_request
from inflight.workload.lengths import Fixed
from inflight.workload.synthetic import synthesize

TRIES, MAX_WAITED = 3, 0.05  # of a real run, while its threads wait for a processor for more than this share
MAX_OFF_PACE = 0.10  # of a lone request's decodes, beyond which a run is tried again
PATIENCE, BETWEEN = 90.0, 3.0  # seconds that a run waits for the calibrated pace; between two looks at it


@dataclass(frozen=True, slots=True)
class Run:
    """A real run. waited: share of their time in which its threads waited for a processor. off: decodes of a lone
    request after it over calibrated ones, minus 1."""

    summary: Summary
    waited: float
    off: float

    @property
    def disturbed(self) -> float:
        """How far the run was disturbed, over as far as is accepted."""
        return max(self.waited / MAX_WAITED, abs(self.off) / MAX_OFF_PACE)


class UndisturbedRuns:
    """Calibrates, and repeats real runs, until the machine was steady meanwhile."""

    def __init__(self, lone_tpot: Callable[[], float], tries: int):
        """lone_tpot: measures the seconds between tokens of a request that is alone. tries: at most, of the
        calibration and of a real run."""
        self._lone_tpot = lone_tpot
        self._tries = tries
        self._pace = 0.0
        self._steady = False  # whether memory was as fast before the kept calibration as after it
        self.calibrations = 0
        self.runs: list[Run] = []
        self.kept: list[Run] = []

    def calibrate(self, calibrate: Callable[[], FittedModel]) -> FittedModel:
        """Calibrate until memory was as fast before as after it, and keep its pace."""
        while True:
            before = self._lone_tpot()
            fitted = calibrate()
            self._pace = self._lone_tpot()
            self.calibrations += 1
            self._steady = abs(self._pace / before - 1) <= MAX_OFF_PACE
            if self._steady or self.calibrations >= self._tries:
                return fitted
            log_line(f"  a lone request's TPOT went from {before * 1e3:.1f} to {self._pace * 1e3:.1f} ms meanwhile")

    def run(self, execute: Callable[[], tuple[Summary, float]]) -> Summary:
        """Repeat a run until it is undisturbed, and keep the one that was disturbed least.

        Args:
            execute: returns a run's summary, and the share of their time in which its threads waited (`driven`).
        """
        tries: list[Run] = []
        while not tries or (tries[-1].disturbed > 1 and len(tries) < self._tries):
            self._await_pace()
            tries.append(self._execute(execute))
        self.runs += tries
        self.kept.append(min(tries, key=lambda run: run.disturbed))
        return self.kept[-1].summary

    def _execute(self, execute: Callable[[], tuple[Summary, float]]) -> Run:
        summary, waited = execute()
        run = Run(summary, waited, self._lone_tpot() / self._pace - 1)
        log_line(f"  threads waited {run.waited:.1%}, lone decodes {run.off:+.0%} off calibration")
        return run

    def _await_pace(self) -> None:
        """Wait until lone decodes take as long as calibrated, at most PATIENCE seconds."""
        until = time.monotonic() + PATIENCE
        while abs(self._lone_tpot() / self._pace - 1) > MAX_OFF_PACE and time.monotonic() < until:
            time.sleep(BETWEEN)

    def describe(self) -> str:
        """Return sentences on how far the kept runs were disturbed, and on those that were not kept."""
        waited, off = ([getattr(run, name) for run in self.kept] for name in ("waited", "off"))
        disturbed, left = sum(run.disturbed > 1 for run in self.kept), len(self.runs) - len(self.kept)
        times = "once" if self.calibrations == 1 else f"{self.calibrations} times"
        if not self._steady:
            times += ", and memory was not as fast before it as after it"
        elif self.calibrations > 1:
            times += ", until memory was as fast before it as after it"
        return (
            f"Calibration ran {times}. {left} of {len(self.runs)} real runs were tried again, since their threads "
            f"waited for a processor for more than {MAX_WAITED:.0%} of their time, or decodes of a lone request after "
            f"them were more than {MAX_OFF_PACE:.0%} off those after calibration. In the runs that were kept both are "
            f"{min(waited):.1%} to {max(waited):.1%} and {min(off):+.0%} to {max(off):+.0%}; {disturbed} of these were "
            "disturbed in all tries."
        )


def lone_tpot(loop: EngineLoop) -> float:
    """Measure the seconds between tokens of a request that is alone on an idle engine."""
    kind = TrafficClass(name="", share=1.0, input=Fixed(16), output=Fixed(64))
    workload = synthesize([kind], arrivals=None, requests=1, seed=0, concurrency=1)

    def request(index: int, arrival: float) -> Request:
        return core_request(workload.entries[index], "lone", tuple(range(16)), arrival)

    (observation,) = Driver(loop, workload, request).run()
    return statistics.median(observation.gaps)


def driven(driver: Driver) -> tuple[list[Observation], float]:
    """Run a workload, and return also the share of their time in which this process's threads waited meanwhile."""
    before = thread_seconds()
    observations = driver.run()
    ran, waited = (after - one for one, after in zip(before, thread_seconds(), strict=True))
    return observations, waited / max(ran + waited, 1e-9)


def thread_seconds() -> tuple[float, float]:
    """Return the seconds in which this process's threads ran, and in which they could have and waited for a processor,
    by Linux's account; zeros where the system has none."""
    ran = waited = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # it has ended meanwhile
            one, other, _ = path.read_text().split()
            ran, waited = ran + int(one), waited + int(other)
    return ran / 1e9, waited / 1e9
