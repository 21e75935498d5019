"""Runs that take turns, so that a machine whose speed drifts is fair to all whom it compares.

Knows the order of the runs and keeps what came of them; what a run is, the contestants know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from inflight.cli.contestants import Contestant
from inflight.report.run import Run, Setting
from inflight.workload.workload import Workload


class Comparison:
    def __init__(
        self,
        contestants: Sequence[Contestant],
        begins: Callable[[str], None],
        told: Callable[[str, int, int], None],
        stopped: Callable[[], bool],
    ):
        """begins: told of each run before it. told(who and what, requests in all, requests ended). stopped: whether
        somebody wants it to end."""
        self._contestants = contestants
        self._begins = begins
        self._told = told
        self._stopped = stopped
        self._runs: dict[str, list[Run]] = {one.name: [] for one in contestants}

    def run(self, load: str, workload: Workload, repeats: int) -> None:
        """Repeats of one load, the contestants in turn, beginning with another one each time. A round that is stopped
        is not kept, so that all have the same ones."""
        for repeat in range(repeats):
            turn = repeat % len(self._contestants)
            taken: dict[str, Run] = {}
            for contestant in (*self._contestants[turn:], *self._contestants[:turn]):
                self._begins(f"{contestant.name}, {load}, round {repeat + 1} of {repeats}")
                told = partial(self._told, f"{contestant.name}, {load}", len(workload.entries))
                taken[contestant.name] = contestant.run(workload, load, told)
                if self._stopped():
                    return
            for name, run in taken.items():
                self._runs[name].append(run)

    @property
    def settings(self) -> list[Setting]:
        return [Setting(one.name, tuple(self._runs[one.name]), one.options) for one in self._contestants]

    def fastest(self) -> float:
        """Requests per second of the fastest run so far; 0 before the first."""
        rates = [run.summary.requests_per_s for runs in self._runs.values() for run in runs]
        return max(rates, default=0.0)
