"""Runs that take turns, so that a machine whose speed drifts is fair to all whom it compares.

Knows the order of the runs and keeps what came of them; what a run is, the targets know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from inflight.cli.comparison_targets import ComparisonTarget
from inflight.report.run import Run, Setting
from inflight.workload.workload import Workload


class Comparison:
    def __init__(
        self,
        targets: Sequence[ComparisonTarget],
        begins: Callable[[str], None],
        progress: Callable[[str, int, int], None],
        stopped: Callable[[], bool],
    ):
        """begins: told of each run before it. told(who and what, requests in all, requests ended). stopped: whether
        somebody wants it to end."""
        self._targets = targets
        self._begins = begins
        self._progress = progress
        self._stopped = stopped
        self._runs: dict[str, list[Run]] = {one.name: [] for one in targets}

    def run(self, load: str, workload: Workload, repeats: int) -> None:
        """Repeats of one load, the targets in turn, beginning with another one each time. A round that is stopped
        is not kept, so that all have the same ones."""
        for repeat in range(repeats):
            turn = repeat % len(self._targets)
            taken: dict[str, Run] = {}
            for target in (*self._targets[turn:], *self._targets[:turn]):
                self._begins(f"{target.name}, {load}, round {repeat + 1} of {repeats}")
                progress = partial(self._progress, f"{target.name}, {load}", len(workload.entries))
                taken[target.name] = target.run(workload, load, progress)
                if self._stopped():
                    return
            for name, run in taken.items():
                self._runs[name].append(run)

    @property
    def settings(self) -> list[Setting]:
        return [Setting(one.name, tuple(self._runs[one.name]), one.options) for one in self._targets]

    def fastest(self) -> float:
        """Requests per second of the fastest run so far; 0 before the first."""
        rates = [run.summary.requests_per_s for runs in self._runs.values() for run in runs]
        return max(rates, default=0.0)
