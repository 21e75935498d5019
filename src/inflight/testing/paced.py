"""The paced executor: steps last at least as long as is set, so that a small model runs at a larger one's pace."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import structs

from inflight.core.types.executor import Executor, ExecutorWrapper, Pending
from inflight.core.types.plan import BatchPlan, StepResult


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of a step, and of each token slot that it computes."""

    step: float
    token: float

    def seconds(self, plan: BatchPlan) -> float:
        """Return the shortest time that a plan takes."""
        return self.step + self.token * plan.tokens


class PacedExecutor(ExecutorWrapper):
    """Delays the results of another executor; a step that takes longer by itself is not delayed."""

    def __init__(
        self,
        executor: Executor,
        pace: Pace,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ):
        super().__init__(executor)
        self._pace = pace
        self._now, self._sleep = now, sleep
        self._free = 0.0  # when the imagined device has computed all it was given

    def submit(self, plan: BatchPlan) -> Pending:
        begun = max(self._now(), self._free)
        self._free = begun + self._pace.seconds(plan)
        return _Paced(super().submit(plan), self._pace.seconds(plan), self._free, self._now, self._sleep)


@dataclass(frozen=True, slots=True)
class _Paced:
    """A step in flight, `seconds` long, that does not end before `end`."""

    pending: Pending
    seconds: float
    end: float
    now: Callable[[], float]
    sleep: Callable[[float], None]

    def result(self) -> StepResult:
        result = self.pending.result()
        left = self.end - self.now()
        if left > 0:
            self.sleep(left)
        return structs.replace(result, seconds=max(result.seconds, self.seconds))
