"""Hostile strategies, policies and predictors: whatever they answer, each request gets its own tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import cycle
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pytest
from core import inspect_scheduler as inside
from core.builders import request, view
from core.harness import Harness, Setup
from core.test_state_machine import requests
from hypothesis import given, settings

from inflight.config import plugin_guards
from inflight.config.plugin_guards import MAX_WAITS, guard_policy, guard_predictor, guard_strategy
from inflight.core.policies import Ordered
from inflight.core.policies.fcfs import Fcfs
from inflight.core.queueing.lanes import LaneSettings
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies import StepShape, StepView
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import FinishedEvent, TokensEvent
from inflight.core.types.features import Features
from inflight.core.types.length_distribution import point, uniform
from inflight.core.types.plan import BatchPlan, Capacity, WaitUntil
from inflight.core.types.request import Request
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.testing.null import NullExecutor

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


def hostile(**answers: list[Any]) -> Any:
    """A plugin whose methods answer so, in turn, over and over; the others of a policy do what they should."""
    plugin = Ordered()
    plugin.name = "hostile"
    plugin.observe = lambda *given: None
    for method, in_turn in answers.items():
        turns = cycle(in_turn)
        setattr(plugin, method, lambda *asked, turns=turns: next(turns)(*asked))
    return plugin


def some(answers: tuple[Any, ...]) -> st.SearchStrategy[list[Any]]:
    """Mostly such as a plugin may give: a long list fails at its first bad one."""
    return st.lists(st.sampled_from(answers), min_size=1, max_size=4)


@given(
    wanted=st.lists(requests(), min_size=1, max_size=6),
    answers=st.tuples(some(SHAPES), some(RANKS), some(GROUPS), some(LENGTHS)),
    window=st.sampled_from([0, 3]),
    pushes=st.booleans(),
    depth=st.integers(1, 2),
)
@settings(deadline=None)
@mock.patch.object(plugin_guards, "MAX_PREEMPTIONS", 20)
def test_each_request_gets_its_own_tokens(
    wanted: list[Request], answers: tuple[list[Any], ...], window: int, pushes: bool, depth: int
) -> None:
    shapes, ranks, groups, lengths = answers
    sentences: list[str] = []
    policy = hostile(rank=ranks, group=groups, may_preempt=[lambda *pair: pushes])
    policy.window = window
    lane = LaneSettings(name="interactive", policy=guard_policy(policy, sentences.append))
    strategy = guard_strategy(hostile(shape=shapes), Chunked(4), sentences.append)
    predictor = guard_predictor(hostile(predict=lengths), sentences.append)
    scheduler = Scheduler(SchedulerConfig(CAPACITY, strategy, [lane], token_budget=9, predictor=predictor))
    loop = EngineLoop(scheduler, NullExecutor(CAPACITY, seconds=lambda plan: 0.01), VirtualClock(), depth=depth)
    asked: dict[str, Request] = {}
    for number, of in enumerate(wanted):
        plain = request(f"r{number}", of.prompt_token_ids, 1 + number, arrival=0.1 * number, n=of.params.n)
        asked[plain.request_id] = plain
        loop.add(plain)
    tokens, ends = run_watched(loop, scheduler)
    assert len(sentences) == len(set(sentences)) <= 3, "one sentence each"
    for name, one in asked.items():
        alone = Harness(Setup(max_model_len=CAPACITY.max_model_len)).alone(one)
        assert ends[name] == alone.finishes
        assert [tokens[name, index] for index in range(one.params.n)] == alone.tokens


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


# -- policies ---------------------------------------------------------------------------------------------------


class Noisy(Ordered):
    """The last come, first served in two groups, whose method `fails_at` answers something else, or fails."""

    name = "noisy"

    def __init__(self, fails_at: str = "", answer: Any = None):
        given = {
            "rank": lambda view, now: (-view.number,),
            "group": lambda view: view.number % 2,
            "group_rank": lambda group, now: (0,),
        }
        if fails_at:
            given[fails_at] = raising(KeyError("no idea")) if answer is None else lambda *asked: answer
        for method, function in given.items():
            setattr(self, method, function)


class NoTruth:
    def __bool__(self) -> bool:
        raise TypeError("neither yes nor no")


@pytest.mark.parametrize(
    ("what", "answer", "words"),
    [
        ("rank", (float("nan"),), "must not hold NaN"),
        ("rank", "first", "a rank must be a tuple of numbers, not 'first'"),
        ("rank", (1, "a"), "a rank must be a tuple of numbers"),
        ("group", ["unhashable"], "failed in group (TypeError"),
        ("group_rank", (float("nan"),), "failed in group_rank"),
        ("may_preempt", NoTruth(), "neither yes nor no"),
        *(
            (method, None, f"failed in {method} (KeyError: 'no idea')")
            for method in ("rank", "group", "may_preempt", "arrived", "started", "preempted", "served", "left")
        ),
    ],
)
def test_a_policy_that_fails_is_replaced_with_one_sentence(what: str, answer: Any, words: str) -> None:
    sentences: list[str] = []
    capacity = Capacity(8, 2, 2, 24, 8)  # two rows, and too few blocks for both to their ends
    lane = LaneSettings(name="interactive", policy=guard_policy(Noisy(what, answer), sentences.append))
    loop = EngineLoop(Scheduler(SchedulerConfig(capacity, Chunked(8), [lane])), NullExecutor(capacity), VirtualClock())
    for number in range(4):
        loop.add(request(str(number), output=9, arrival=-4.0 + number))
    loop.run()
    (sentence,) = sentences
    assert words in sentence and sentence.endswith("first come, first served has taken over.")


def ranks(policy: Any) -> list[int]:
    return sorted(range(3), key=lambda number: policy.rank(view(number), 0.0))


def test_while_a_plugins_policy_works_it_is_followed() -> None:
    policy = guard_policy(Noisy(), report=pytest.fail)
    assert ranks(policy) == [2, 1, 0]
    assert (policy.name, policy.window, policy.reads_priority) == ("noisy", 0, False)


class WithoutWindow(Noisy):
    reads_priority = True
    window = property(raising(RuntimeError("no idea")))


def test_a_policy_whose_settings_fail_is_replaced_at_once() -> None:
    sentences: list[str] = []
    policy = guard_policy(WithoutWindow(), sentences.append)
    assert (policy.window, policy.reads_priority, ranks(policy)) == (0, False, [0, 1, 2])
    assert len(sentences) == 1 and "failed in settings (RuntimeError: no idea)" in sentences[0]


def test_a_policy_without_progress_is_replaced() -> None:
    """A step computes less than a block, so that a preempted sequence starts over."""
    sentences: list[str] = []
    capacity = Capacity(8, 4, 1, 24, 8)
    pushing = hostile(rank=[lambda view, now: (view.is_running, view.arrival)], may_preempt=[lambda *pair: True])
    lanes = [LaneSettings(name="interactive", policy=guard_policy(pushing, sentences.append))]
    scheduler = Scheduler(SchedulerConfig(capacity, Chunked(2), lanes, token_budget=2))
    loop = EngineLoop(scheduler, NullExecutor(capacity), VirtualClock())
    for token, name in enumerate("ab"):
        loop.add(request(name, [token] * 6, output=2))
    for _ in range(1100):
        loop.advance()
    assert loop.idle and scheduler.stats().preemptions <= 1001
    assert sentences == [
        "The policy 'hostile' lets sequences preempt each other, 1000 times without a new token; first come, first "
        "served has taken over."
    ]


# -- strategies -------------------------------------------------------------------------------------------------


def guarded(*shapes: Any, **more: list[Any]) -> tuple[Any, list[str]]:
    """Return a strategy that proposes so, before `chunked` of four tokens, and what is said of it."""
    sentences: list[str] = []
    return guard_strategy(hostile(shape=[*shapes], **more), Chunked(4), sentences.append), sentences


def loop_of(strategy: Any) -> EngineLoop:
    return EngineLoop(Scheduler(SchedulerConfig(CAPACITY, strategy, Fcfs())), NullExecutor(CAPACITY), VirtualClock())


@pytest.mark.parametrize(
    "answer",
    [
        raising(ValueError("no idea")),
        *(lambda view, one=one: one for one in ("chunked", StepShape(0, 4), None)),
        SHAPES[11],
    ],
)
def test_a_strategy_that_fails_is_replaced_by_chunked(answer: Any) -> None:
    good = StepShape(token_budget=5, row_limit=2)
    strategy, sentences = guarded(lambda view: good, answer, lambda view: good)
    now = StepView(now=2.0, waiting=(), running=0, decodes=lambda: (0, 0), max_rows=4)
    assert strategy.shape(now) is good
    for _ in range(2):
        assert strategy.shape(now) == StepShape(token_budget=4, row_limit=4)
    assert len(sentences) == 1 and "'hostile' failed in shape" in sentences[0]


def test_a_strategy_may_fail_while_it_learns() -> None:
    strategy, sentences = guarded(observe=[raising(OSError("the disk is full"))])
    strategy.observe(Features(1, 1, 1, 1, 0.0), 0.1)
    assert "failed in observe (OSError: the disk is full)" in sentences[0]


def test_a_strategy_that_puts_work_off_for_ever_is_replaced() -> None:
    strategy, sentences = guarded(lambda view: WaitUntil(view.now + 1e-3))
    loop = loop_of(strategy)
    loop.add(request("a", output=2))
    loop.run()
    assert len(sentences) == 1 and f"delayed all work {MAX_WAITS} times" in sentences[0]


def test_ctrl_c_within_a_plugin_is_not_its_failure() -> None:
    strategy, _ = guarded(raising(KeyboardInterrupt()), SHAPES[0])
    with pytest.raises(KeyboardInterrupt):
        strategy.shape(mock.Mock())
    assert strategy.shape(mock.Mock()) == StepShape(3, 2)


def test_a_batch_goes_on_when_its_strategy_fails() -> None:
    """It had reserved memory to its end; others join when it is over."""
    strategy, sentences = guarded(SHAPES[4], SHAPES[5], raising(ValueError("no")))
    loop = loop_of(strategy)
    plans: list[BatchPlan] = []
    loop.add_observer(mock.Mock(planned=plans.append))
    loop.add(request("a", [0] * 3, output=5))
    loop.add(request("b", [1] * 3, output=2, arrival=1.0))
    loop.run()
    assert len(sentences) == 1
    assert [[chunk.sequence_id for chunk in plan.chunks] for plan in plans] == [[0]] * 5 + [[1]] * 2


def test_a_plugins_expected_output_is_a_distribution_within_the_bounds() -> None:
    """A number between those that may come; a failing plugin's are those of quantiles."""
    sentences: list[str] = []
    answers = [lambda *asked, one=one: one for one in (3.5, 2.0, 500.0, math.nan)]
    predictor = guard_predictor(hostile(predict=answers), sentences.append)
    ask = request("a")
    assert [predictor.lengths(ask, 90, 2) for _ in range(3)] == [point(4), point(3), point(90)]
    assert predictor.lengths(ask, 90, 2) == uniform(3, 90) and len(sentences) == 1


def test_attributes_of_a_policy_count_behind_its_guard() -> None:
    class Attributed(Ordered):
        name, reranks_heads, orders_programs, window = "attributed", True, True, 7

        def rank(self, view: Any, now: float) -> tuple[float, ...]:
            return (view.arrival,)

    guarded = guard_policy(Attributed(), print)
    assert guarded.reranks_heads and guarded.orders_programs and guarded.window == 7
    assert not guarded.reads_priority and not guarded.by_arrival
    assert not guard_policy(object(), print).orders_programs  # type: ignore[arg-type]
