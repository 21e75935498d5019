"""A workload on an engine in virtual time: who is sent when, and what is seen of it."""

from __future__ import annotations

import itertools

import pytest
from core.builders import request
from core.harness import FaultyExecutor, Setup

from inflight.core.types.request import Request
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.metrics.observation import Observation
from inflight.testing.null import NullExecutor
from inflight.workload.driving import Driver, EngineFault
from inflight.workload.workload import Entry, Workload

ROOMY = Setup(num_blocks=60, max_rows=4, token_budget=8)


def driver(workload: Workload) -> Driver:
    """Steps take a second."""
    loop = EngineLoop(ROOMY.scheduler(), NullExecutor(ROOMY.capacity, lambda plan: 1.0), VirtualClock(5.0))
    return Driver(loop, workload, lambda index, arrival: of(workload.entries[index], index, arrival))


def of(entry: Entry, index: int, arrival: float) -> Request:
    return request(str(index), [index] * entry.prompt_tokens, entry.output_tokens, arrival=arrival)


def run(*entries: Entry, **settings: object) -> list[Observation]:
    return driver(Workload(tuple(entries), "test", **settings)).run()  # type: ignore[arg-type]


def test_an_open_loop_sends_at_its_times() -> None:
    first, second = run(Entry(0.5, 2, 3), Entry(10.0, 2, 1, traffic="late", tenant="t"))
    assert first.sent == first.intended == 5.5
    assert list(first.token_times) == [6.5, 7.5, 8.5], "on the engine's clock, which began before the run"
    assert (first.ttft, first.tpot, first.e2e) == (1.0, 1.0, 3.0)
    assert (second.intended, second.ended, second.traffic, second.tenant) == (15.0, 16.0, "late", "t")


def test_gaps_of_several_samples_are_each_samples_own() -> None:
    """Both draw a token in each step: between the tokens of one lies a step, between those of both nothing."""
    loop = EngineLoop(ROOMY.scheduler(), NullExecutor(ROOMY.capacity, lambda plan: 1.0), VirtualClock())
    workload = Workload((Entry(0.0, 2, 4),), "test")
    (one,) = Driver(loop, workload, lambda index, arrival: request("0", (1, 2), 4, arrival=arrival, n=2)).run()
    assert (one.output_tokens, one.longest_output, len(one.token_times)) == (8, 4, 8)
    assert list(one.token_times) == sorted(one.token_times)
    assert one.gaps == [1.0] * 6


def test_a_request_that_comes_within_a_step_waits_for_it() -> None:
    _, second = run(Entry(0.0, 2, 3), Entry(0.5, 2, 1))
    assert (second.intended, second.sent, second.ttft) == (5.5, 6.0, 1.5)


def test_a_closed_loop_counts_from_when_a_place_was_free() -> None:
    seen = run(*[Entry(0.0, 2, 2) for _ in range(4)], concurrency=1, closed=True)
    assert [one.intended for one in seen] == [5.0, 7.0, 9.0, 11.0]
    assert [one.ttft for one in seen] == [1.0] * 4


def test_an_open_loop_with_a_bound_counts_from_the_arrival() -> None:
    seen = run(*[Entry(0.0, 2, 2) for _ in range(4)], concurrency=1)
    assert [one.intended for one in seen] == [5.0] * 4
    assert [one.ttft for one in seen] == [1.0, 3.0, 5.0, 7.0]


def test_a_turn_follows_the_answer_before_it() -> None:
    first, second, third = run(
        Entry(0.0, 2, 2), Entry(0.0, 2, 2, after=0, think_s=3.0), Entry(20.0, 2, 2, after=1, think_s=1.0)
    )
    assert first.ended == 7.0
    assert second.intended == 10.0
    assert third.intended == 25.0, "not before its own time"


def test_refused_requests_are_seen_and_give_their_place_back() -> None:
    too_long = Entry(0.0, ROOMY.capacity.max_model_len + 1, 1)
    refused, served = run(too_long, Entry(0.0, 2, 1), concurrency=1, closed=True)
    assert refused.outcome == "failed" and refused.error
    assert served.outcome == "completed"


def test_a_stopped_run_returns_what_it_has() -> None:
    entries = (Entry(0.0, 2, 1), Entry(0.0, 2, 50), Entry(100.0, 2, 1))
    looks = itertools.count()
    done, cut, never = driver(Workload(entries, "test")).run(lambda: next(looks) >= 4)
    assert [one.outcome for one in (done, cut, never)] == ["completed", "unfinished", "unfinished"]
    assert 0 < cut.output_tokens < 50
    assert cut.sent is not None and never.sent is None


def test_a_step_that_fails_ends_the_run() -> None:
    executor = FaultyExecutor(ROOMY.capacity, lambda plan: 1.0)
    executor.fail_next = True
    loop = EngineLoop(ROOMY.scheduler(), executor, VirtualClock())
    workload = Workload((Entry(0.0, 2, 5),), "test")
    with pytest.raises(EngineFault):
        Driver(loop, workload, lambda index, arrival: of(workload.entries[index], index, arrival)).run()
