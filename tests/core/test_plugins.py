"""Hostile strategies, policies and predictors: whatever they answer, each request gets its own tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import cycle
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from inflight.core import plugin
from inflight.core.plugin import MAX_WAITS, guard_policy, guard_predictor, guard_strategy
from inflight.core.policies import Ordered
from inflight.core.policies.fcfs import Fcfs
from inflight.core.queueing.lanes import LaneSettings
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.sequence import SequenceView
from inflight.core.strategies import StepShape, StepView
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import FinishedEvent, TokensEvent
from inflight.core.types.plan import BatchPlan, Capacity, WaitUntil
from inflight.core.types.request import Request
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.testing.null import NullExecutor

from . import inspect_scheduler as inside
from .builders import request
from .harness import outputs_alone
from .test_state_machine import requests

CAPACITY = Capacity(num_blocks=8, block_size=4, max_rows=2, max_model_len=24, vocab_size=8)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class Quarrel:
    """A group that cannot be compared."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("incomparable")


def raising(error: BaseException) -> Callable[..., Any]:
    def raises(*seen: object) -> Any:
        raise error

    return raises


FAULTS = (raising(ValueError("no")), raising(SystemExit()), raising(Mute()), raising(RecursionError()))
NONSENSE: tuple[Any, ...] = (None, "8", -1, 1.5, math.nan, math.inf, 10**400, [], (), object(), True)
SHAPES: tuple[Callable[[StepView], Any], ...] = (
    lambda view: StepShape(3, 2),
    lambda view: StepShape(1, 1, whole_prompts=True),
    lambda view: StepShape(9, 2, early_end=2),
    lambda view: StepShape(9, 2, True, tuple(one.number for one in view.waiting.views()), True),
    lambda view: StepShape(9, 2, True, tuple(one.number for one in view.waiting.views())[:1], True),
    lambda view: StepShape(9, 2, True, (), True),
    lambda view: StepShape(9, 2, True, (999,), True),
    lambda view: StepShape(9, 2, True, tuple(one.number for one in view.waiting.views()) * 2, True),
    lambda view: StepShape(9, 2, admit=(0, 1)),
    lambda view: StepShape(9, 2, run_to_completion=True),
    lambda view: WaitUntil(view.now + 0.5),
    lambda view: WaitUntil(view.now),
    lambda view: WaitUntil(view.now - 1),
    *(lambda view, one=one: StepShape(one, 2) for one in NONSENSE),
    *(lambda view, one=one: StepShape(4, one) for one in NONSENSE),
    *(lambda view, one=one: StepShape(4, 2, early_end=one) for one in NONSENSE),
    *(lambda view, one=one: StepShape(4, 2, True, one, True) for one in NONSENSE),
    *(lambda view, one=one: StepShape(4, 2, True, (one,), True) for one in NONSENSE),
    *(lambda view, one=one: WaitUntil(one) for one in NONSENSE),
    *(lambda view, one=one: one for one in NONSENSE),
    *FAULTS,
)
RANKS: tuple[Callable[..., Any], ...] = (
    lambda view, now: (view.arrival,),
    lambda view, now: (-view.number,),
    lambda view, now: (view.is_running,),
    lambda view, now: (not view.is_running, now),
    lambda view, now: (),
    lambda view, now: (math.inf, -math.inf),
    *(lambda view, now, one=one: (one,) for one in NONSENSE),
    *(lambda view, now, one=one: one for one in NONSENSE),
    *FAULTS,
)
GROUPS: tuple[Callable[..., Any], ...] = (
    lambda view: None,
    lambda view: view.number % 2,
    lambda view: math.nan,
    lambda view: Quarrel(),
    lambda view: [],
    *FAULTS,
)
LENGTHS: tuple[Callable[..., Any], ...] = (
    lambda request, most, so_far: so_far + 1,
    *(lambda request, most, so_far, one=one: one for one in NONSENSE),
    *FAULTS,
)


class HostileStrategy:
    name = "hostile"

    def __init__(self, answers: list[Callable[[StepView], Any]]):
        self._answers = cycle(answers)

    def shape(self, view: StepView) -> Any:
        return next(self._answers)(view)

    def observe(self, features: object, seconds: float) -> None:
        """It learns nothing."""


class HostilePolicy(Ordered):
    name = "hostile"

    def __init__(self, ranks: list[Any], groups: list[Any], window: int, pushes: bool):
        self._ranks, self._groups, self.window, self._pushes = cycle(ranks), cycle(groups), window, pushes

    def rank(self, view: SequenceView, now: float) -> Any:
        return next(self._ranks)(view, now)

    def group(self, view: SequenceView) -> Any:
        return next(self._groups)(view)

    def may_preempt(self, waiting: SequenceView, running: SequenceView) -> bool:
        return self._pushes


class HostilePredictor:
    def __init__(self, answers: list[Any]):
        self._answers = cycle(answers)

    def predict(self, request: Request, max_output_tokens: int, so_far: int) -> Any:
        return next(self._answers)(request, max_output_tokens, so_far)

    def observe(self, request: Request, output_tokens: int) -> None:
        """It learns nothing."""


def some(answers: tuple[Any, ...]) -> st.SearchStrategy[list[Any]]:
    """Mostly such as a plugin may give: a long list fails at its first bad one."""
    return st.lists(st.sampled_from(answers), min_size=1, max_size=4)


@given(
    wanted=st.lists(requests(), min_size=1, max_size=6),
    shapes=some(SHAPES),
    ranks=some(RANKS),
    groups=some(GROUPS),
    lengths=some(LENGTHS),
    window=st.sampled_from([0, 3]),
    pushes=st.booleans(),
    depth=st.integers(1, 2),
)
@settings(deadline=None)
@mock.patch.object(plugin, "MAX_PREEMPTIONS", 20)
def test_each_request_gets_its_own_tokens(
    wanted: list[Request],
    shapes: list[Any],
    ranks: list[Any],
    groups: list[Any],
    lengths: list[Any],
    window: int,
    pushes: bool,
    depth: int,
) -> None:
    sentences: list[str] = []
    policy = guard_policy(HostilePolicy(ranks, groups, window, pushes), sentences.append)
    scheduler = Scheduler(
        SchedulerConfig(
            CAPACITY,
            guard_strategy(HostileStrategy(shapes), Chunked(4), sentences.append),
            [LaneSettings(name="interactive", policy=policy)],
            token_budget=9,
            predictor=guard_predictor(HostilePredictor(lengths), sentences.append),
        )
    )
    executor = NullExecutor(CAPACITY, seconds=lambda plan: 0.01)
    loop = EngineLoop(scheduler, executor, VirtualClock(), depth=depth)
    asked: dict[str, Request] = {}
    for number, of in enumerate(wanted):
        plain = request(f"r{number}", of.prompt_token_ids, 1 + number, arrival=0.1 * number, n=of.params.n)
        asked[plain.request_id] = plain
        loop.add(plain)
    tokens, ends = run_watched(loop, scheduler)
    assert len(sentences) == len(set(sentences)) <= 3, "one sentence each"
    for name, one in asked.items():
        alone, finishes = outputs_alone(one, CAPACITY.max_model_len)
        assert ends[name] == finishes
        assert [tokens[name, index] for index in range(one.params.n)] == alone


def run_watched(loop: EngineLoop, scheduler: Scheduler) -> tuple[dict[tuple[str, int], list[int]], dict[str, Any]]:
    """All tokens and ends; the state is looked at after every round."""
    tokens: dict[tuple[str, int], list[int]] = {}
    ends: dict[str, Any] = {}
    for _ in range(5000):
        if loop.idle:
            return tokens, ends
        outcome = loop.advance()
        inside.check(scheduler, CAPACITY, [flight.plan for flight in loop._flights])
        if isinstance(outcome, WaitUntil):
            loop.clock.wait_until(outcome.time)
            continue
        for event in outcome:
            if isinstance(event, TokensEvent):
                tokens.setdefault((event.request_id, event.sample_index), []).extend(event.token_ids)
            elif isinstance(event, FinishedEvent):
                ends[event.request_id] = event.finishes
    raise AssertionError("it does not end")


class PushesOut(Ordered):
    """Waiting sequences come before running ones."""

    name = "pushes-out"

    def rank(self, view: SequenceView, now: float) -> Any:
        return (view.is_running, view.arrival)

    def may_preempt(self, waiting: SequenceView, running: SequenceView) -> bool:
        return True


def test_a_policy_without_progress_is_replaced() -> None:
    """A step computes less than a block, so that a preempted sequence starts over."""
    sentences: list[str] = []
    capacity = Capacity(8, 4, 1, 24, 8)
    lanes = [LaneSettings(name="interactive", policy=guard_policy(PushesOut(), sentences.append))]
    scheduler = Scheduler(SchedulerConfig(capacity, Chunked(2), lanes, token_budget=2))
    loop = EngineLoop(scheduler, NullExecutor(capacity), VirtualClock())
    loop.add(request("a", [0] * 6, output=2))
    loop.add(request("b", [1] * 6, output=2))
    for _ in range(1100):
        loop.advance()
    assert loop.idle
    assert sentences == [
        "The policy 'pushes-out' lets sequences preempt each other, 1000 times without a new token; first come, first "
        "served has taken over."
    ]
    assert scheduler.stats().preemptions <= 1001


def test_a_strategy_that_puts_work_off_for_ever_is_replaced() -> None:
    sentences: list[str] = []
    strategy = guard_strategy(HostileStrategy([lambda view: WaitUntil(view.now + 1e-3)]), Chunked(4), sentences.append)
    loop = EngineLoop(Scheduler(SchedulerConfig(CAPACITY, strategy, Fcfs())), NullExecutor(CAPACITY), VirtualClock())
    loop.add(request("a", output=2))
    loop.run()
    assert len(sentences) == 1 and f"delayed all work {MAX_WAITS} times" in sentences[0]


def test_ctrl_c_within_a_plugin_is_not_its_failure() -> None:
    strategy = guard_strategy(HostileStrategy([raising(KeyboardInterrupt()), SHAPES[0]]), Chunked(4), pytest.fail)
    with pytest.raises(KeyboardInterrupt):
        strategy.shape(mock.Mock())
    assert strategy.shape(mock.Mock()) == StepShape(3, 2)


def test_a_batch_goes_on_when_its_strategy_fails() -> None:
    """It had reserved memory to its end; others join when it is over."""
    sentences: list[str] = []
    shapes = [SHAPES[4], lambda view: StepShape(9, 2, True, (), True), raising(ValueError("no"))]
    strategy = guard_strategy(HostileStrategy(shapes), Chunked(4), sentences.append)
    scheduler = Scheduler(SchedulerConfig(CAPACITY, strategy, Fcfs()))
    loop = EngineLoop(scheduler, NullExecutor(CAPACITY), VirtualClock())
    plans: list[BatchPlan] = []
    loop.add_observer(mock.Mock(planned=plans.append))
    loop.add(request("a", [0] * 3, output=5))
    loop.add(request("b", [1] * 3, output=2, arrival=1.0))
    loop.run()
    assert len(sentences) == 1
    assert [[chunk.sequence_id for chunk in plan.chunks] for plan in plans] == [[0]] * 5 + [[1]] * 2
