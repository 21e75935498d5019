"""Policies: the order of each, its ageing, and what is preempted."""

from __future__ import annotations

from typing import Any

import pytest
from breadth import first_of

from inflight.core.estimation.latency import LatencyModel
from inflight.core.plugin import guard_policy
from inflight.core.policies import Ordered, Policy, Rank
from inflight.core.policies.deadline import Deadline
from inflight.core.policies.prefix import TOKENS_PER_SECOND, Prefix
from inflight.core.policies.priority import SECONDS_PER_LEVEL, Priority
from inflight.core.policies.sjf import OUTPUT_WEIGHT as OUTPUT_WORK
from inflight.core.policies.sjf import WORK_PER_SECOND, Sjf
from inflight.core.queueing.lanes import LaneSettings
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.sequence import SequenceView
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.features import Features
from inflight.core.types.plan import BatchPlan, Capacity
from inflight.core.types.request import SLO
from inflight.testing.null import NullExecutor

from .builders import request, view
from .harness import Harness, LaneSetup, Setup


def order(policy: Policy, *views: SequenceView, now: float = 0.0) -> list[int]:
    return [one.number for one in sorted(views, key=lambda one: (policy.rank(one, now), one.number))]


def setup_with(policy: str, **more: Any) -> Setup:
    return Setup(**{"num_blocks": 60, "block_size": 2, "token_budget": 8, "lanes": (LaneSetup(policy=policy),), **more})


def starts(harness: Harness) -> list[int]:
    """Sequences in the order of their first chunk."""
    harness.drain()
    return list(dict.fromkeys(chunk.sequence_id for plan in harness.plans for chunk in plan.chunks))


# -- sjf --------------------------------------------------------------------------------------------------------


def test_the_least_predicted_work_first() -> None:
    short, long, wordy = view(0, predicted=5), view(1, predicted=50), view(2, prompt=[0] * 400, predicted=5)
    assert order(Sjf(), long, wordy, short) == [0, 1, 2]


def test_waiting_makes_up_for_work() -> None:
    """A long request is passed over for a bounded time only."""
    long = view(0, predicted=101)
    seconds = 100 * OUTPUT_WORK / WORK_PER_SECOND
    assert order(Sjf(), long, view(1, predicted=1, arrival=seconds - 1)) == [1, 0]
    assert order(Sjf(), long, view(1, predicted=1, arrival=seconds + 1)) == [0, 1]


def test_what_is_done_is_no_work_any_more() -> None:
    policy, one = Sjf(), view(0, prompt=[0] * 20, predicted=30)
    before = policy.rank(one, 0.0)
    one._sequence.num_computed, one._sequence.output = 20, [1] * 10
    assert before[0] - policy.rank(one, 0.0)[0] == 20 + 10 * OUTPUT_WORK


# -- priority ---------------------------------------------------------------------------------------------------


def test_the_lower_number_first_and_waiting_is_worth_levels() -> None:
    assert order(Priority(), view(0, priority=1), view(1, priority=-1), view(2)) == [1, 2, 0]
    old = view(0, priority=1)
    assert order(Priority(), old, view(1, arrival=SECONDS_PER_LEVEL - 1)) == [1, 0]
    assert order(Priority(), old, view(1, arrival=SECONDS_PER_LEVEL + 1)) == [0, 1]


def test_a_clearly_higher_one_pushes_out_the_lowest_that_runs() -> None:
    harness = Harness(setup_with("priority", max_rows=2))
    harness.add(request("low", priority=2, output=9), request("middle", priority=1, output=9))
    harness.step()
    harness.add(request("same", priority=1), request("high", priority=0))
    plan = harness.plan()
    assert isinstance(plan, BatchPlan)
    assert {chunk.sequence_id for chunk in plan.chunks} == {1, 3}
    assert harness.scheduler.stats().preemptions == 1
    harness.commit()
    harness.drain()


def test_none_is_preempted_for_one_that_could_not_start_anyway() -> None:
    """Its lane has all the rows that it may have, but for those of equals."""
    harness = Harness(setup_with("priority", max_rows=2, num_blocks=4))
    harness.add(request("low", [0] * 3, priority=2, output=4), request("high", [1] * 3, priority=0, output=4))
    harness.step()
    harness.add(request("next", [2] * 7, priority=1))  # needs all blocks, of which high holds two
    plan = harness.plan()
    assert isinstance(plan, BatchPlan) and len(plan.chunks) == 2
    assert harness.scheduler.stats().preemptions == 0
    harness.commit()
    harness.drain()


@pytest.mark.parametrize("depth", first_of([1, 2]))
def test_low_priorities_do_not_starve(depth: int) -> None:
    harness = Harness(setup_with("priority", max_rows=1, depth=depth))
    harness.add(request("low", priority=1, output=2))
    for number in range(300):
        harness.add(request(f"high {number}", output=4, arrival=harness.now))
        harness.step()
        if harness.clients[0].ended:
            break
    assert harness.clients[0].ended and number > 100, "only after its time"
    harness.drain()


# -- deadline ---------------------------------------------------------------------------------------------------


def test_the_least_slack_first_and_the_hopeless_last() -> None:
    policy = Deadline(LatencyModel())
    soon, late, none = view(0, slo=SLO(ttft=1.0)), view(1, slo=SLO(ttft=5.0)), view(2)
    assert order(policy, none, late, soon) == [0, 1, 2]
    assert order(policy, none, late, soon, now=2.0) == [1, 2, 0]


def test_slack_counts_what_the_prompt_takes() -> None:
    latency = LatencyModel()
    for tokens in range(1, 60):
        latency.observe(Features(tokens, 1, 1, 0, 0.0), tokens / 100)
    policy = Deadline(latency)
    long, short = view(0, prompt=[0] * 400, slo=SLO(ttft=5.0)), view(1, prompt=[0], slo=SLO(ttft=3.0))
    assert order(policy, short, long) == [0, 1]  # 4 of its 5 seconds are its prompt
    assert order(policy, short, long, now=2.0) == [1, 0]  # and now it is too late for it


# -- prefix -----------------------------------------------------------------------------------------------------


def test_the_longest_cached_prefix_first_and_cold_ones_are_not_starved() -> None:
    cold = view(0)
    assert order(Prefix(), cold, view(1, cached=64), view(2, cached=32)) == [1, 2, 0]
    seconds = 64 / TOKENS_PER_SECOND
    assert order(Prefix(), cold, view(1, cached=64, arrival=seconds * 1.1)) == [0, 1]


def test_cached_prefixes_are_looked_up_when_a_choice_is_made() -> None:
    harness = Harness(setup_with("prefix", max_rows=1))
    harness.add(request("first", [0] * 8, output=1))
    harness.step()
    harness.add(request("cold", [1] * 8, output=1), request("warm", [0] * 8, output=1))
    assert starts(harness) == [0, 2, 1]


# -- a plugin's policy ------------------------------------------------------------------------------------------


class Shy(Ordered):
    """Fails at one question."""

    name = "shy"

    def __init__(self, fails_at: str, answer: Any = None):
        self._fails_at, self._answer = fails_at, answer

    def rank(self, view: SequenceView, now: float) -> Rank:
        return self._say("rank", (-view.number,))

    def group(self, view: SequenceView) -> Any:
        return self._say("group", view.number % 2)

    def group_rank(self, group: Any, now: float) -> Rank:
        return self._say("group_rank", (0,))

    def may_preempt(self, waiting: SequenceView, running: SequenceView) -> bool:
        return self._say("may_preempt", False)

    def arrived(self, view: SequenceView) -> None:
        self._say("arrived", None)

    def started(self, view: SequenceView) -> None:
        self._say("started", None)

    def preempted(self, view: SequenceView) -> None:
        self._say("preempted", None)

    def served(self, view: SequenceView, prompt_tokens: int, output_tokens: int, now: float) -> None:
        self._say("served", None)

    def left(self, view: SequenceView) -> None:
        self._say("left", None)

    def _say(self, what: str, answer: Any) -> Any:
        if what != self._fails_at:
            return answer
        if self._answer is None:
            raise KeyError("no idea")
        return self._answer


class NoTruth:
    def __bool__(self) -> bool:
        raise TypeError("neither yes nor no")


@pytest.mark.parametrize(
    ("what", "answer", "words"),
    [
        ("rank", None, "failed in rank (KeyError: 'no idea')"),
        ("rank", (float("nan"),), "must not hold NaN"),
        ("rank", "first", "a rank must be a tuple of numbers, not 'first'"),
        ("rank", (1, "a"), "a rank must be a tuple of numbers"),
        ("group", ["unhashable"], "failed in group (TypeError"),
        ("group", None, "failed in group"),
        ("group_rank", (float("nan"),), "failed in group_rank"),
        ("may_preempt", NoTruth(), "neither yes nor no"),
        ("may_preempt", None, "failed in may_preempt"),
        ("arrived", None, "failed in arrived"),
        ("started", None, "failed in started"),
        ("preempted", None, "failed in preempted"),
        ("served", None, "failed in served"),
        ("left", None, "failed in left"),
    ],
)
def test_a_policy_that_fails_is_replaced_with_one_sentence(what: str, answer: Any, words: str) -> None:
    sentences: list[str] = []
    policy = guard_policy(Shy(what, answer), sentences.append)
    capacity = Capacity(8, 2, 2, 24, 8)  # two rows, and too few blocks for both to their ends
    scheduler = Scheduler(SchedulerConfig(capacity, Chunked(8), [LaneSettings(name="interactive", policy=policy)]))
    executor = NullExecutor(capacity)
    for number in range(4):
        scheduler.add(request(str(number), output=9, arrival=float(number)), 0.0)
    for _ in range(80):
        plan = scheduler.plan(0.0)
        if isinstance(plan, BatchPlan):
            scheduler.commit(plan, executor.submit(plan).result(), 0.0)
    assert scheduler.idle
    assert len(sentences) == 1
    assert words in sentences[0] and sentences[0].endswith("first come, first served has taken over.")


def test_while_a_plugins_policy_works_it_is_followed() -> None:
    policy = guard_policy(Shy("nothing"), report=lambda sentence: pytest.fail(sentence))
    assert order(policy, *(view(number) for number in range(3))) == [2, 1, 0]
    assert (policy.name, policy.window, policy.reads_priority) == ("shy", 0, False)


class WithoutWindow(Shy):
    reads_priority = True

    @property
    def window(self) -> int:  # type: ignore[override]
        raise RuntimeError("no idea")


def test_a_policy_whose_settings_fail_is_replaced_at_once() -> None:
    sentences: list[str] = []
    policy = guard_policy(WithoutWindow("nothing"), sentences.append)
    assert (policy.window, policy.reads_priority) == (0, False)
    assert order(policy, *(view(number) for number in range(3))) == [0, 1, 2]
    assert len(sentences) == 1 and "failed in settings (RuntimeError: no idea)" in sentences[0]
