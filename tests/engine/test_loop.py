"""The loop: order of plan, submit and commit; time; and that depth changes neither tokens nor ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pytest
from core import inspect_scheduler as inside
from core.builders import request
from core.harness import Setup
from core.test_state_machine import requests
from hypothesis import given, settings

from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies import Fixed, StepShape, StepView
from inflight.core.types.events import Event, FinishedEvent, PooledEvent, PromptScoredEvent, TokensEvent
from inflight.core.types.plan import BatchPlan, StepResult, WaitUntil
from inflight.core.types.request import Request, RequestRefused
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop, _Flight
from inflight.engine.observers import EngineObserver
from inflight.testing.null import NullExecutor

SETUP = Setup(num_blocks=30, max_rows=4, token_budget=8)


class Spy(NullExecutor):
    """Notes the order of submits and of results that were waited for."""

    def __init__(self, setup: Setup = SETUP, broken: tuple[int, ...] = ()):
        super().__init__(setup.capacity, seconds=lambda plan: 0.5)
        self.notes: list[str] = []
        self.plans: list[BatchPlan] = []
        self._broken = broken

    def submit(self, plan: BatchPlan):  # type: ignore[no-untyped-def]
        self.notes.append(f"submit {plan.step}")
        self.plans.append(plan)
        result = super().submit(plan).result()
        if plan.step in self._broken:
            result = StepResult(plan.step, (), 0.5, error="broken")
        notes = self.notes

        class Waited:
            def result(self) -> StepResult:
                notes.append(f"result {plan.step}")
                return result

        return Waited()

    def close(self) -> None:
        super().close()
        self.notes.append("close")


def outcome(events: list[Event]) -> dict[str, object]:
    """Each request's vector (as sample -2), scores of its prompt (-1), tokens of its samples, and how they ended."""
    tokens: dict[tuple[str, int], list[object]] = {}
    ends: dict[str, object] = {}
    for event in events:
        if isinstance(event, TokensEvent):
            tokens.setdefault((event.request_id, event.sample_index), []).extend(event.token_ids)
        elif isinstance(event, PromptScoredEvent):
            assert (event.request_id, 0) not in tokens, "scores come before tokens"
            tokens.setdefault((event.request_id, -1), []).extend(event.logprobs)
        elif isinstance(event, PooledEvent):
            tokens[event.request_id, -2] = [*event.vector]
        else:
            ends[event.request_id] = event.finishes
    return {name: (end, {key: value for key, value in tokens.items() if key[0] == name}) for name, end in ends.items()}


@pytest.mark.parametrize(
    ("depth", "output", "notes"),
    [
        (1, 3, ["submit 0", "result 0", "submit 1", "result 1", "submit 2", "result 2"]),
        (2, None, ["submit 0", "submit 1", "result 0", "submit 2", "result 1", "result 2"]),
    ],
)
def test_as_many_steps_are_submitted_before_one_is_committed(depth: int, output: int | None, notes: list[str]) -> None:
    spy = Spy()
    loop = EngineLoop(SETUP.scheduler(), spy, VirtualClock(), depth=depth)
    loop.add(request("a", output=output, max_tokens=3))
    loop.run()
    loop.close()
    assert spy.notes == [*notes, "close"]


def test_time_is_what_steps_take() -> None:
    clock = VirtualClock(start=10.0)
    loop = EngineLoop(SETUP.scheduler(), Spy(), clock)
    loop.add(request("a", output=3, arrival=9.0))
    *_, end = loop.run()
    assert clock.now() == 11.5
    assert isinstance(end, FinishedEvent)
    timings = end.timings
    assert (timings.ttft_ms, timings.decode_ms, timings.other_ms, timings.total_ms) == (1500, 1000, 1000, 2500)


def test_nothing_to_do_and_refusals_leave_the_loop_idle() -> None:
    loop = EngineLoop(SETUP.scheduler(), Spy(), VirtualClock())
    with pytest.raises(RequestRefused):
        loop.add(request("a", prompt=[]))
    assert loop.idle
    assert loop.advance() == loop.run() == loop.abort("unknown") == []


def test_waiting_is_handed_out_or_waited_for() -> None:
    class Window(Fixed):
        name = "window"

        def shape(self, view: StepView) -> StepShape | WaitUntil:
            return StepShape(8, 4) if view.now >= 2 else WaitUntil(2.0)

    clock = VirtualClock()
    loop = EngineLoop(Scheduler(SchedulerConfig(SETUP.capacity, Window(), Fcfs())), Spy(), clock)
    loop.add(request("a", output=1))
    assert loop.advance() == WaitUntil(2.0)
    assert not loop.idle
    *_, end = loop.run()
    assert isinstance(end, FinishedEvent)
    assert clock.now() == 2.5


@pytest.mark.parametrize("depth", [1, 2])
def test_a_broken_step_ends_its_requests_and_the_loop_goes_on(depth: int) -> None:
    loop = EngineLoop(SETUP.scheduler(), Spy(broken=(1,)), VirtualClock(), depth=depth)
    loop.add(request("a", output=5))
    events = loop.run()
    loop.add(request("b", output=5))
    events += loop.run()
    ends = [event.finishes[0].reason for event in events if isinstance(event, FinishedEvent)]
    assert ends == ["error", "length"]


SMALL = st.builds(
    Setup,
    num_blocks=st.integers(5, 10),
    block_size=st.integers(1, 4),
    max_rows=st.integers(1, 4),
    token_budget=st.integers(1, 9),
    prefix_caching=st.booleans(),
    watermark=st.sampled_from([0.0, 0.2]),
)


@given(SMALL, st.lists(st.tuples(requests(max_prompt=5), st.integers(0, 3)), min_size=1, max_size=6))
@settings(deadline=None)
def test_depth_two_yields_what_depth_one_yields(setup: Setup, arrivals: list[tuple[Request, int]]) -> None:
    """Invariant 7; and 6: the same run again makes the same plans."""

    def run(depth: int) -> tuple[dict[str, object], list[BatchPlan]]:
        spy = Spy(setup)
        loop = EngineLoop(setup.scheduler(), spy, VirtualClock(), depth=depth)
        events: list[Event] = []
        for number, (of, rounds) in enumerate(arrivals):
            loop.add(
                Request(
                    request_id=str(number), arrival=loop.clock.now(), prompt_token_ids=of.prompt_token_ids,
                    params=of.params, seed=of.seed, forced_output_tokens=of.forced_output_tokens,
                )
            )  # fmt: skip
            for _ in range(rounds):
                advanced = loop.advance()
                assert isinstance(advanced, list)
                events += advanced
        return outcome(events + loop.run()), spy.plans

    once, plans = run(1)
    assert run(1) == (once, plans)
    assert run(2)[0] == once
    assert len(once) == len(arrivals)


PLACES = ["submit", "submitted", "result", "planned", "committed", "plan", "grow", "admit", "commit", "publish", "end"]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_whatever_breaks_a_step_off_the_next_call_finds_an_engine_that_works(depth: int, where: str, at: int) -> None:
    """A real KeyboardInterrupt, within the executor, between plan and submit, or in the middle of the accounts."""
    setup = replace(SETUP, num_blocks=12, max_rows=2)
    scheduler = setup.scheduler()
    loop = EngineLoop(scheduler, Spy(setup), VirtualClock(), depth=depth, observers=[EngineObserver()])
    for name, prompt in ("a", [0] * 3), ("b", [1] * 5), ("c", [0] * 4):
        loop.add(request(name, prompt, output=6))
    events: list[Event] = []
    with broken_off(loop, where, at):
        while not loop.idle:
            events += loop.advance()  # type: ignore[operator]
    for name in "abc":
        events += loop.abort(name)
    assert sorted(event.request_id for event in events if isinstance(event, FinishedEvent)) == list("abc")
    assert not any(isinstance(event, FinishedEvent) for event in loop.run()), "it was sent before"
    inside.check(scheduler, setup.capacity, [])
    stats = loop.stats()
    assert (stats.running, stats.waiting, stats.kv.held_blocks) == (0, 0, 0)
    fresh = setup.loop(depth=1)
    for one in loop, fresh:
        one.add(request("d", [0] * 5, output=4))
        one.add(request("e", [1] * 5, output=4))
    assert outcome(loop.run()) == outcome(fresh.run())


@contextmanager
def broken_off(loop: EngineLoop, where: str, at: int) -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of a method's call number `at`; at its beginning in "submit"."""
    scheduler, executor, observers = loop._scheduler, loop._executor, loop._observers
    places: dict[str, tuple[object, str]] = {
        "submit": (executor, "submit"),
        "submitted": (executor, "submit"),
        "result": (_Flight, "result"),
        "planned": (observers, "planned"),
        "committed": (observers, "step"),
        "plan": (scheduler._running, "drain_freed_rows"),
        "admit": (scheduler._running, "join"),
        "grow": (scheduler._memory._pool, "allocate"),
        "commit": (scheduler._memory, "publish"),
        "publish": (scheduler._memory._prefix, "_add"),
        "end": (scheduler._memory, "free_request"),
    }
    calls, (owner, name) = count(), places[where]
    verb = getattr(owner, name)

    def interrupted(*arguments: object, **named: object) -> object:
        is_hit = next(calls) == at
        if is_hit and where == "submit":
            raise KeyboardInterrupt
        done = verb(*arguments, **named)
        if is_hit:
            raise KeyboardInterrupt
        return done

    with mock.patch.object(owner, name, interrupted), pytest.raises(KeyboardInterrupt):
        yield


def test_steps_before_an_interrupted_one_are_delivered() -> None:
    """With async scheduling: the first step's token counts, though the second was never submitted."""
    loop = EngineLoop(SETUP.scheduler(), Spy(), VirtualClock(), depth=2)
    loop.add(request("a", output=3))
    with broken_off(loop, "submit", 1):
        loop.advance()
    first, second = loop.run()
    assert isinstance(first, TokensEvent) and isinstance(second, FinishedEvent)
    assert second.finishes[0].reason == "error"
    assert "KeyboardInterrupt" in str(second.finishes[0].detail)


def test_waiting_requests_are_served_after_an_interrupted_step() -> None:
    setup = replace(SETUP, max_rows=1)
    loop = EngineLoop(setup.scheduler(), Spy(setup), VirtualClock())
    loop.add(request("a", output=3))
    loop.add(request("b", output=3))
    with broken_off(loop, "submit", 0):
        loop.run()
    ends = [event for event in loop.run() if isinstance(event, FinishedEvent)]
    assert [(end.request_id, end.finishes[0].reason) for end in ends] == [("a", "error"), ("b", "length")]


def test_a_second_interrupt_while_the_first_is_cleaned_up_after() -> None:
    scheduler = SETUP.scheduler()
    loop = EngineLoop(scheduler, Spy(), VirtualClock())
    loop.add(request("a", output=3))
    broken = mock.Mock(side_effect=KeyboardInterrupt)
    with mock.patch.multiple(scheduler, commit=broken, recover=broken), broken_off(loop, "result", 0):
        loop.run()
    (end,) = loop.run()
    assert isinstance(end, FinishedEvent) and end.finishes[0].reason == "error"
    assert loop.idle and loop.stats().kv.held_blocks == 0


class Unreadable:
    """The text of a tokenizer that fails, at once or at the third token."""

    def __init__(self, at_once: bool):
        self._left = 2
        if at_once:
            raise ValueError("no such piece")

    def push(self, token_id: int) -> str | None:
        self._left -= 1
        if self._left < 0:
            raise ValueError("no such piece")
        return None


def test_a_tokenizer_that_cannot_prepare_stop_strings_refuses_only_the_request() -> None:
    scheduler = SETUP.scheduler(stop_text=lambda of: Unreadable(at_once=True))
    loop = EngineLoop(scheduler, Spy(), VirtualClock())
    with pytest.raises(RequestRefused, match="1 stop strings cannot be looked for"):
        loop.add(request("a", stop=("x",)))
    assert loop.idle
    loop.add(request("a", output=2))
    assert outcome(loop.run())


def test_a_tokenizer_that_fails_at_a_token_ends_that_request_alone() -> None:
    loop = EngineLoop(SETUP.scheduler(stop_text=lambda of: Unreadable(at_once=False)), Spy(), VirtualClock())
    loop.add(request("a", output=None, max_tokens=9, stop=("x",)))
    loop.add(request("b", output=6))
    ends = {event.request_id: event.finishes[0] for event in loop.run() if isinstance(event, FinishedEvent)}
    assert (ends["a"].reason, ends["b"].reason) == ("error", "length")
    assert ends["a"].detail == "Output token 3 cannot be read: no such piece"


@pytest.mark.parametrize(
    "more",
    [{}, {"host_blocks": 8, "host_is_tier": True}, {"session_eviction": True}, {"snapshots": 6}, {"windows": (0, 6)}],
    ids=str,
)
def test_cached_prefixes_are_dropped_while_nothing_runs(more: dict[str, Any]) -> None:
    setup = replace(SETUP, **more)
    loop = EngineLoop(setup.scheduler(), Spy(setup), VirtualClock())

    def cached(name: str) -> int:
        loop.add(request(name, prompt=[0, 1] * 8, output=2))
        assert loop.reset_prefix_cache() is None
        *_, end = loop.run()
        assert isinstance(end, FinishedEvent)
        return end.timings.cached_tokens

    assert cached("a") == 0 and cached("b") > 0
    dropped = loop.reset_prefix_cache()
    assert dropped is not None and dropped > 0
    assert loop.stats().kv.free_blocks == setup.num_blocks and loop.reset_prefix_cache() == 0
    assert cached("c") == 0 and cached("d") > 0
