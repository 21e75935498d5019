"""Policies: the order of each, its ageing, and which sequence is preempted. `test_fair` has fair share."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from breadth import first_of
from hypothesis import given

from inflight.core.estimation.latency import LatencyModel
from inflight.core.policies import Policy
from inflight.core.policies.deadline import Deadline
from inflight.core.policies.hrrn import Hrrn
from inflight.core.policies.prefix import TOKENS_PER_SECOND, Prefix
from inflight.core.policies.priority import SECONDS_PER_LEVEL, Priority
from inflight.core.policies.sjf import Sjf
from inflight.core.queueing.waiting_queue import WaitingQueue
from inflight.core.request_timings import StepTime
from inflight.core.sequence import Sequence, SequenceView
from inflight.core.types.features import Features
from inflight.core.types.request import SLO

from .builders import expect, request, sequence, view
from .harness import Harness, LaneSetup, Setup


def order(policy: Policy, *views: SequenceView, now: float = 0.0) -> list[int]:
    return [one.number for one in sorted(views, key=lambda one: (policy.rank(one, now), one.number))]


def harness_of(policy: str, *requests: Any, max_rows: int, num_blocks: int = 60, depth: int = 1) -> Harness:
    lanes = (LaneSetup(policy=policy),)
    return Harness(Setup(num_blocks=num_blocks, token_budget=8, lanes=lanes, max_rows=max_rows, depth=depth), *requests)


def wait(queue: WaitingQueue, one: Sequence) -> None:
    queue.policy.arrived(SequenceView(one))
    queue.push(one)


def take(queue: WaitingQueue, one: Sequence) -> Sequence:
    queue.take(one)
    one.row = 0
    queue.policy.started(SequenceView(one))
    return one


@pytest.mark.parametrize(
    ("policy", "views", "numbers"),
    [
        (Priority(), [view(0, priority=1), view(1, priority=-1), view(2)], [1, 2, 0]),
        (Priority(), [view(0, priority=1), view(1, arrival=SECONDS_PER_LEVEL - 1)], [1, 0]),
        (Priority(), [view(0, priority=1), view(1, arrival=SECONDS_PER_LEVEL + 1)], [0, 1]),
        (Prefix(), [view(0), view(1, cached=64), view(2, cached=32)], [1, 2, 0]),
        (Prefix(), [view(0), view(1, cached=64, arrival=64 / TOKENS_PER_SECOND * 1.1)], [0, 1]),
    ],
)
def test_the_first_is_served_next_but_waiting_makes_up_for_rank(
    policy: Policy, views: list[SequenceView], numbers: list[int]
) -> None:
    assert order(policy, *views) == numbers


@pytest.mark.parametrize("policy", [Sjf, Hrrn])
def test_the_shortest_work_goes_first(policy: type[Policy]) -> None:
    """Output counts, and so does the prompt; like work is served by arrival."""
    sequences = sequence(0), sequence(1, prompt=[0] * 400), sequence(2), sequence(3)
    queue = WaitingQueue(policy(), cached_tokens=lambda one: 0, time=StepTime())
    for one, predicted in zip(sequences, (50, 5, 5, 5), strict=True):
        expect(one, predicted)
        wait(queue, one)
    queue.policy.served(view(9), 100, 0, 0.0)
    assert [take(queue, one).number for one in queue.in_order()] == [2, 3, 0, 1]


def test_what_is_cached_of_a_prompt_is_no_work() -> None:
    for policy in (Sjf(), Hrrn()):
        queue = WaitingQueue(policy, cached_tokens=lambda one: 90 * one.number, time=StepTime())
        for one in (sequence(0, prompt=[0] * 50), sequence(1, prompt=[0] * 100)):
            wait(queue, one)
        queue.policy.served(view(9), 100, 0, 0.0)
        assert next(iter(queue.in_order())).number == 1


def test_sjf_preempts_who_has_the_longest_work_left() -> None:
    policy = Sjf()
    nearly_done, fresh = view(0, prompt=[0] * 20, predicted=90, running=True), view(1, predicted=50, running=True)
    for one in (nearly_done, fresh):
        policy.arrived(one)
    assert order(policy, nearly_done, fresh) == [1, 0]
    nearly_done._sequence.num_computed, nearly_done._sequence.output = 20, [1] * 80
    assert order(policy, nearly_done, fresh) == [0, 1]


@given(
    lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=100),
    patience=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    rows=st.integers(1, 6),
    waiting=st.integers(1, 60),
    returning=st.integers(2, 7),
)
def test_no_sequence_is_overtaken_more_often_than_the_bound(
    lengths: list[int], patience: float, rows: int, waiting: int, returning: int
) -> None:
    """Whatever is predicted.

    Args:
        lengths: Predicted, of the sequences as they arrive, one at each turn.
        patience: Of the policy.
        rows: That run at most.
        waiting: Turns before one is taken at each.
        returning: One in so many is preempted when it was taken, once.
    """
    queue = WaitingQueue(Sjf(patience), cached_tokens=lambda one: 0, time=StepTime())
    left, returned, running = set[int](), set[int](), list[Sequence]()
    for turn in range(len(lengths) + waiting):
        if turn < len(lengths):
            one = sequence(turn)
            expect(one, lengths[turn])
            wait(queue, one)
            left.add(turn)
        if turn < waiting or (head := next(iter(queue.in_order()), None)) is None:
            continue
        if len(running) == rows:
            ended = running.pop(0)
            ended.output = [1] * (1 + ended.number % 5)
            queue.policy.left(SequenceView(ended))
        take(queue, head)
        if head.number % returning == 0 and head.number not in returned:
            returned.add(head.number)
            head.row = None
            queue.policy.preempted(SequenceView(head))
            queue.push(head)
        else:
            left.remove(head.number)
            running.append(head)
        arrived, bound = range(min(turn + 1, len(lengths))), patience * rows + 1
        assert all(sum(later > one and later not in left for later in arrived) <= bound for one in left)


def test_a_queue_of_short_ones_lets_a_long_one_pass_the_sooner_the_longer_it_is() -> None:
    turns = []
    for predicted in (15, 25, 1000):
        queue, running = WaitingQueue(Sjf(patience=3), cached_tokens=lambda one: 0, time=StepTime()), []
        for one in map(sequence, range(60)):
            expect(one, predicted if one.number == 10 else 10)
            wait(queue, one)
        for one in queue.in_order():
            if len(running) == 4:
                ended = running.pop(0)
                ended.output = [1] * 10
                queue.policy.left(SequenceView(ended))
            running.append(take(queue, one))
            if one.number == 10:
                turns.append(queue.policy._taken)
    assert turns[0] > turns[1] > turns[2] == 12, "the last after one that came later"


def test_hrrn_lets_a_long_one_pass_once_its_ratio_is_the_highest() -> None:
    """The clock is the tokens that were processed since each arrival."""
    policy = Hrrn()
    long, short = view(0, prompt=[0] * 400, predicted=400), view(1, prompt=[0] * 4, predicted=16)
    policy.arrived(long)
    policy.served(view(9), 700, 20, 0.0)
    policy.arrived(short)
    policy.served(view(9), 0, 10, 0.0)
    assert order(policy, long, short) == [0, 1], "730 / 800 is more than 10 / 20"
    policy.served(view(9), 0, 30, 0.0)
    assert order(policy, long, short) == [1, 0], "760 / 800 is less than 40 / 20"


def test_a_clearly_higher_priority_preempts_the_lowest_that_runs() -> None:
    running = request("low", priority=2, output=9), request("middle", priority=1, output=9)
    harness = harness_of("priority", *running, max_rows=2)
    harness.step()
    harness.add(request("same", priority=1), request("high", priority=0))
    assert {chunk.sequence_id for chunk in harness.plan().chunks} == {1, 3}
    assert harness.scheduler.stats().preemptions == 1


def test_no_sequence_is_preempted_for_one_that_could_not_start_anyway() -> None:
    running = request("low", [0] * 3, priority=2, output=4), request("high", [1] * 3, priority=0, output=4)
    harness = harness_of("priority", *running, max_rows=2, num_blocks=4)
    harness.step()
    harness.add(request("next", [2] * 7, priority=1))  # needs all blocks, of which high holds two
    assert len(harness.plan().chunks) == 2 and harness.scheduler.stats().preemptions == 0


@pytest.mark.parametrize(
    "priority, later, is_first", [(0, 1.0, True), (1, 1.0, False), (2, 1.0, False), (0, SECONDS_PER_LEVEL + 1, False)]
)
def test_the_prompt_of_a_higher_priority_goes_before_those_that_run(
    priority: int, later: float, is_first: bool
) -> None:
    """Not before one that has aged by more than the level is worth."""
    harness = harness_of("priority", request("low", [0] * 20, priority=1, output=2), max_rows=3)
    harness.step()
    harness.now += later
    harness.add(request("new", [1] * 6, priority=priority, output=2, arrival=harness.now))
    lengths = [chunk.length for chunk in harness.plan().chunks]
    assert lengths == ([6, 2] if is_first else [8])
    assert harness.scheduler.stats().preemptions == 0


@pytest.mark.parametrize("depth", first_of([1, 2]))
def test_low_priorities_do_not_starve(depth: int) -> None:
    harness = harness_of("priority", request("low", priority=1, output=2), max_rows=1, depth=depth)
    for number in range(300):
        harness.add(request(f"high {number}", output=4, arrival=harness.now))
        harness.step()
        if harness.clients[0].ended:
            break
    assert harness.clients[0].ended and number > 100, "only after its time"


def test_the_least_slack_first_and_the_hopeless_last() -> None:
    policy = Deadline(LatencyModel())
    views = view(0, slo=SLO(ttft=1.0)), view(1, slo=SLO(ttft=5.0)), view(2)
    assert (order(policy, *views), order(policy, *views, now=2.0)) == ([0, 1, 2], [1, 2, 0])


def test_slack_counts_what_the_prompt_takes() -> None:
    latency = LatencyModel()
    for tokens in range(1, 60):
        latency.observe(Features(tokens, 1, 1, 0, 0.0), tokens / 100)
    views = view(0, prompt=[0] * 400, slo=SLO(ttft=5.0)), view(1, prompt=[0], slo=SLO(ttft=3.0))
    assert order(Deadline(latency), *views) == [0, 1]  # 4 of its 5 seconds are its prompt
    assert order(Deadline(latency), *views, now=2.0) == [1, 0]  # and now it is too late for it


def test_cached_prefixes_are_looked_up_when_a_choice_is_made() -> None:
    harness = harness_of("prefix", request("first", [0] * 8, output=1), max_rows=1)
    harness.step()
    harness.serve(request("cold", [1] * 8, output=1), request("warm", [0] * 8, output=1))
    starts = dict.fromkeys(chunk.sequence_id for plan in harness.plans for chunk in plan.chunks)
    assert list(starts) == [0, 2, 1]
