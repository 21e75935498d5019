"""Warming up: steps of padding alone, for decoders that gain by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from inflight.core.types.plan import BatchPlan, Capacity, StepResult, Transferred
from inflight.execution.graphs import warm_up


class Noting:
    """An executor that computes nothing. error: what its steps fail with."""

    capacity = Capacity(4, 16, 6, 64, 100)

    def __init__(self, error: str | None = None) -> None:
        self.plans: list[BatchPlan] = []
        self._error = error

    def submit(self, plan: BatchPlan) -> Noting:
        self.plans.append(plan)
        return self

    def result(self) -> StepResult:
        return StepResult(0, (), 0.0, self._error)

    def poll(self, seconds: float = 0.0) -> tuple[Transferred, ...] | None:
        return None

    def close(self) -> None: ...


class Capturing:
    asked = 0.0

    def capture_ahead(self, run: Callable[[Sequence[int]], None], seconds: float) -> None:
        self.asked = seconds
        for chunks in ([1] * 6, [2]):
            run(chunks)


def test_it_computes_steps_of_padding_alone() -> None:
    decoder, executor = Capturing(), Noting()
    warm_up(decoder, executor, 3.0)
    assert decoder.asked == 3.0
    assert [plan.padding for plan in executor.plans] == [(1,) * 6, (2,)]
    assert not any(plan.chunks or plan.new_requests for plan in executor.plans)


def test_who_captures_nothing_is_not_run() -> None:
    executor = Noting()
    warm_up(object(), executor)
    assert not executor.plans


def test_a_device_that_computes_no_step_is_reported_at_the_start() -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        warm_up(Capturing(), Noting("Step 0 failed: out of memory"))
