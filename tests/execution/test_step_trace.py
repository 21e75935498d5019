"""The division of a recorded step, computed by hand."""

from __future__ import annotations

import pytest

from inflight.execution.backends.native.recording import Recorded, RecordedCall, Span
from inflight.execution.roofline import Machine
from inflight.execution.step_trace import ThreadTime, summarize

MACHINE = Machine(100.0, {"bfloat16": 1000.0, "int8": 4000.0})
S = 10**9


def seconds(*spans: tuple[int, float, float, float]) -> list[Span]:
    return [Span(call, round(begin * S), round(end * S), round(own * S)) for call, begin, end, own in spans]


def test_each_threads_time_is_divided_by_operation() -> None:
    """A product on two threads, the second of which comes late, and for which the first waits; then a norm on the
    caller alone, that was put aside for a second."""
    calls = [
        RecordedCall("copies", 0, 0, "bfloat16"),
        RecordedCall("linear", 200, 500, "bfloat16"),
        RecordedCall("norm", 100, 0, "bfloat16"),
    ]
    recorded = Recorded(
        calls,
        spans=seconds((1, 1, 6, 5), (2, 7, 10, 2)),
        jobs=seconds((1, 2, 6, 4)),
        workers=[seconds((1, 2, 4, 2)), seconds((1, 3, 6, 2.5))],
    )
    step = summarize(recorded, 12 * S, MACHINE)
    linear, norm = step.operations
    assert (linear.name, linear.calls, linear.seconds, linear.ceiling_seconds) == ("linear", 1, 5, 2)
    assert (norm.name, norm.seconds, norm.ceiling_seconds) == ("norm", 3, 1)
    assert linear.threads == [
        ThreadTime(busy=3, last_task=2),
        ThreadTime(busy=2.5, put_aside=0.5, waking=1, alone=1),
    ]
    assert norm.threads == [ThreadTime(busy=2, put_aside=1), ThreadTime(alone=3)]
    assert step.threads[0] == ThreadTime(busy=5, put_aside=1, last_task=2, between=4)
    assert step.ceiling_seconds == 3


def test_a_thread_that_never_came_was_waking() -> None:
    calls = [RecordedCall("linear", 0, 4000, "int8"), RecordedCall("linear", 0, 4000, "int8")]
    recorded = Recorded(
        calls,
        spans=seconds((0, 0, 2, 2), (1, 2, 4, 2)),
        jobs=seconds((0, 0, 2, 2), (1, 2, 4, 2)),
        workers=[seconds((0, 0, 2, 2), (1, 2, 4, 2)), seconds((1, 2.5, 3.5, 1))],
    )
    (linear,) = summarize(recorded, 5 * S, MACHINE).operations
    assert linear.threads[1] == ThreadTime(busy=1, waking=2.5, last_task=0.5)
    assert linear.calls == 2 and linear.ceiling_seconds == pytest.approx(2)
