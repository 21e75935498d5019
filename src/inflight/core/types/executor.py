"""Executors: what computes plans, and the steps that they have in flight."""

from __future__ import annotations

from typing import Protocol

from inflight.core.types.plan import BatchPlan, Capacity, StepResult, Transferred


class Pending(Protocol):
    """A step that was submitted."""

    def result(self) -> StepResult:
        """Wait for the step, and return its result; a failed step has an error and does not raise."""


class Executor(Protocol):
    """Computes plans. Real, simulated, remote and null executors are the same to the engine."""

    @property
    def capacity(self) -> Capacity:
        """Limits that plans keep to."""

    def submit(self, plan: BatchPlan) -> Pending:
        """Begin a step."""

    def poll(self, seconds: float = 0.0) -> tuple[Transferred, ...] | None:
        """Return asynchronous transfers that have ended since the last call, in any order.

        Each transfer that was begun is returned once, within a finite time, whatever became of its step.

        Args:
            seconds: Time to wait for one, where none has ended.

        Returns:
            None where no transfer is out.
        """

    def close(self) -> None:
        """Release the device."""


class Done:
    """A `Pending` step whose result is there already."""

    def __init__(self, result: StepResult):
        self._result = result

    def result(self) -> StepResult:
        return self._result


class ExecutorWrapper:
    """An executor that changes what another one is given or returns; a subclass overrides the methods it changes."""

    def __init__(self, executor: Executor):
        self._executor = executor

    @property
    def capacity(self) -> Capacity:
        return self._executor.capacity

    def submit(self, plan: BatchPlan) -> Pending:
        return self._executor.submit(plan)

    def poll(self, seconds: float = 0.0) -> tuple[Transferred, ...] | None:
        return self._executor.poll(seconds)

    def close(self) -> None:
        self._executor.close()
