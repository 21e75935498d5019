"""Programs: the order in which they began, its bounds, and what names cannot gain."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.core.policies import program as programs
from inflight.core.policies.program import HEAD_START_S, MAX_REST_S, Program
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.sequence import SequenceView
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.plan import BatchPlan, Capacity
from inflight.testing.null import NullExecutor

from .builders import request, view


def arrive(policy: Program, number: int, arrival: float, **fields: Any) -> SequenceView:
    one = view(number, arrival=arrival, **fields)
    policy.arrived(one)
    return one


def end(policy: Program, one: SequenceView, now: float) -> None:
    policy.started(one)
    one._sequence.row = 0
    policy.served(one, 1, 0, now)
    policy.left(one)


def order(policy: Program, *views: SequenceView) -> list[int]:
    return [one.number for one in sorted(views, key=lambda one: policy.rank(one, 0.0))]


def test_the_next_call_of_a_program_goes_before_programs_that_began_later() -> None:
    policy = Program()
    end(policy, arrive(policy, 0, 1.0, program="first"), 4.0)
    new, plain = arrive(policy, 1, 5.0, program="second"), arrive(policy, 2, 6.0)
    child = arrive(policy, 3, 8.0, program="first", session="another")
    again = arrive(policy, 4, 9.0, session="first")
    assert order(policy, new, plain, child, again) == [3, 4, 1, 2], "a session is the program where none is named"


def test_a_program_that_rests_for_long_begins_anew_and_a_running_one_does_not() -> None:
    policy = Program()
    end(policy, arrive(policy, 0, 0.0, program="rests"), 1.0)
    slow = arrive(policy, 1, 0.0, program="runs")
    new = arrive(policy, 2, 10.0)
    late = 1.0 + MAX_REST_S + 1.0
    assert order(policy, new, arrive(policy, 3, late, program="rests")) == [2, 3]
    assert order(policy, new, arrive(policy, 4, late, program="runs"), slow) == [1, 4, 2]


def test_no_request_goes_before_one_that_came_a_head_start_before_it() -> None:
    policy, busy, waits = Program(), 0.0, None
    for number in range(200):
        busy = 100.0 * number
        end(policy, arrive(policy, number, busy, program="for ever"), busy)
        if number == 1:
            waits = arrive(policy, 1000, 150.0)
        if waits is not None:
            later = arrive(policy, 2000 + number, busy + 50.0, program="for ever")
            assert (order(policy, waits, later)[0] == 1000) == (busy + 50.0 - 150.0 >= HEAD_START_S)
            end(policy, later, busy + 50.0)


def test_names_are_a_tenants_own_and_new_ones_gain_nothing() -> None:
    policy = Program()
    end(policy, arrive(policy, 0, 0.0, tenant="a", program="p"), 1.0)
    honest = arrive(policy, 1, 5.0, tenant="b", program="q")
    split = [arrive(policy, number, 6.0 + number, tenant="b", program=f"part {number}") for number in range(2, 6)]
    stolen = arrive(policy, 6, 20.0, tenant="b", program="p")
    assert order(policy, *split, stolen, honest) == [1, 2, 3, 4, 5, 6]


def served_first(names: list[str]) -> list[str]:
    """Return the tenants in the order in which their requests start: a liar with one request for each name, all before
    those of another tenant, which are plain."""
    capacity = Capacity(400, 2, 2, 70, 8)
    scheduler = Scheduler(SchedulerConfig(capacity, Chunked(40), Program(), prefix_caching=False))
    executor, tenants, started = NullExecutor(capacity), list[str](), set[int]()
    for index, name in enumerate(names):
        scheduler.add(request(f"liar {index}", [0] * 4, 8, tenant="liar", program=name, arrival=0.0), 0.0)
    for index in range(4):
        scheduler.add(request(f"other {index}", [0] * 4, 8, tenant="other", arrival=1.0), 1.0)
    while not scheduler.idle:
        plan = scheduler.plan(1.0)
        assert isinstance(plan, BatchPlan)
        new = [chunk.sequence_id for chunk in plan.chunks if chunk.sequence_id not in started]
        started.update(new)
        tenants += ["liar" if number < len(names) else "other" for number in new]
        scheduler.commit(plan, executor.submit(plan).result(), 1.0)
    return tenants


@pytest.mark.parametrize("names", [["old"] * 30, [f"new {index}" for index in range(30)], [""] * 30])
def test_whatever_a_tenant_calls_its_programs_it_has_its_share(names: list[str]) -> None:
    tenants = served_first(names)
    assert tenants[:8].count("other") == 4, "two backlogged tenants are served in turns"


def test_few_programs_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MAX_PROGRAMS", 10)
    policy = Program()
    kept = arrive(policy, 0, 0.0, program="at work")
    for number in range(1, 100):
        end(policy, arrive(policy, number, float(number), program=f"p{number}"), float(number))
    assert len(policy._runs) <= 11
    new = arrive(policy, 200, 50.0)
    assert order(policy, new, arrive(policy, 201, 100.0, program="at work"), kept) == [0, 201, 200]
