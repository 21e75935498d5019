"""The paced executor: steps take as long as is said, at least, so that eyes can follow what a larger model would do.

Everything else is what the executor below it does. Knows plans and seconds; a step that takes longer by itself is left
as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import structs

from inflight.core.types.plan import BatchPlan, Capacity, Executor, Pending, StepResult, Transferred


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of a step, and of each token slot that it computes."""

    step: float
    token: float

    def seconds(self, plan: BatchPlan) -> float:
        return self.step + self.token * plan.tokens


class PacedExecutor:
    def __init__(
        self,
        executor: Executor,
        pace: Pace,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self._executor = executor
        self._pace = pace
        self._now, self._sleep = now, sleep
        self._free = 0.0  # when the device that is played has done what it was given

    @property
    def capacity(self) -> Capacity:
        return self._executor.capacity

    def submit(self, plan: BatchPlan) -> Pending:
        begun = max(self._now(), self._free)
        self._free = begun + self._pace.seconds(plan)
        return _Paced(self._executor.submit(plan), self._pace.seconds(plan), self._free, self._now, self._sleep)

    def poll(self, seconds: float = 0.0) -> tuple[Transferred, ...] | None:
        return self._executor.poll(seconds)

    def close(self) -> None:
        self._executor.close()


@dataclass(frozen=True, slots=True)
class _Paced:
    """A step under way: `seconds` long, not over before `end`."""

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
