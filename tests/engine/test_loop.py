"""The loop: order of plan, submit and commit; time; and that depth changes neither tokens nor ends."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from core.builders import request
from core.harness import Setup
from core.test_state_machine import requests
from hypothesis import given, settings

from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies import Fixed, StepShape, StepView
from inflight.core.types.events import Event, FinishedEvent, PromptScoredEvent, TokensEvent
from inflight.core.types.plan import BatchPlan, StepResult, WaitUntil
from inflight.core.types.request import Request, RequestRefused
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.engine.null import NullExecutor

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
    """Per request the scores of its prompt (as sample -1) and the tokens of each sample, and how each ended."""
    tokens: dict[tuple[str, int], list[object]] = {}
    ends: dict[str, object] = {}
    for event in events:
        if isinstance(event, TokensEvent):
            tokens.setdefault((event.request_id, event.sample_index), []).extend(event.token_ids)
        elif isinstance(event, PromptScoredEvent):
            tokens.setdefault((event.request_id, -1), []).extend(event.logprobs)
        else:
            ends[event.request_id] = event.finishes
    return {name: (end, {key: value for key, value in tokens.items() if key[0] == name}) for name, end in ends.items()}


def test_at_depth_one_every_step_is_committed_before_the_next_is_planned() -> None:
    spy = Spy()
    loop = EngineLoop(SETUP.scheduler(), spy, VirtualClock())
    loop.add(request("a", output=3))
    loop.run()
    assert spy.notes == ["submit 0", "result 0", "submit 1", "result 1", "submit 2", "result 2"]


def test_at_depth_two_the_next_step_is_submitted_before_the_last_is_done() -> None:
    spy = Spy()
    loop = EngineLoop(SETUP.scheduler(), spy, VirtualClock(), depth=2)
    loop.add(request("a", output=None, max_tokens=3))
    loop.run()
    assert spy.notes == ["submit 0", "submit 1", "result 0", "submit 2", "result 1", "result 2"]


def test_time_is_what_steps_take() -> None:
    clock = VirtualClock(start=10.0)
    loop = EngineLoop(SETUP.scheduler(), Spy(), clock)
    loop.add(request("a", output=3, arrival=9.0))
    *_, end = loop.run()
    assert clock.now() == 11.5
    assert isinstance(end, FinishedEvent)
    timings = end.timings
    assert (timings.ttft_ms, timings.decode_ms, timings.other_ms, timings.total_ms) == (1500, 1000, 1000, 2500)


def test_nothing_to_do() -> None:
    loop = EngineLoop(SETUP.scheduler(), Spy(), VirtualClock())
    assert loop.idle
    assert loop.advance() == []
    assert loop.run() == []
    assert loop.abort("nobody") == []


def test_refusals_reach_the_caller_and_leave_the_loop_idle() -> None:
    loop = EngineLoop(SETUP.scheduler(), Spy(), VirtualClock())
    with pytest.raises(RequestRefused):
        loop.add(request("a", prompt=[]))
    assert loop.idle


def test_waiting_is_handed_out_or_waited_for() -> None:
    class Window(Fixed):
        name = "window"

        def shape(self, view: StepView) -> StepShape | WaitUntil:
            return StepShape(8, 4) if view.now >= 2 else WaitUntil(2.0)

    clock = VirtualClock()
    loop = EngineLoop(Scheduler(SETUP.capacity, Window(), Fcfs()), Spy(), clock)
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


@pytest.mark.parametrize("depth", [1, 2])
def test_aborted_between_two_rounds(depth: int) -> None:
    loop = EngineLoop(SETUP.scheduler(), Spy(), VirtualClock(), depth=depth)
    loop.add(request("a", output=9))
    loop.advance()
    (end,) = loop.abort("a")
    assert isinstance(end, FinishedEvent)
    assert loop.run() == []
    assert loop.idle and loop.snapshot().held_blocks == 0


def test_closing_closes_the_executor() -> None:
    spy = Spy()
    EngineLoop(SETUP.scheduler(), spy, VirtualClock()).close()
    assert spy.notes == ["close"]


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
                    request_id=str(number),
                    prompt_token_ids=of.prompt_token_ids,
                    params=of.params,
                    seed=of.seed,
                    arrival=loop.clock.now(),
                    forced_output_tokens=of.forced_output_tokens,
                )
            )
            for _ in range(rounds):
                advanced = loop.advance()
                assert isinstance(advanced, list)
                events += advanced
        return outcome(events + loop.run()), spy.plans

    once, plans = run(1)
    assert run(1) == (once, plans)
    assert run(2)[0] == once
    assert len(once) == len(arrivals)
