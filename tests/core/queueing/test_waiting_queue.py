"""The waiting queue: groups are served as by a walk through all of them, and few are looked at."""

from __future__ import annotations

import random
from collections.abc import Hashable

import pytest

from inflight.core.policies import Policy, Rank
from inflight.core.policies.fair import Fair
from inflight.core.policies.fcfs import Fcfs
from inflight.core.queueing.waiting_queue import WaitingQueue
from inflight.core.request_timings import StepTime
from inflight.core.sequence import Sequence, SequenceView

from ..builders import sequence


def queue_of(policy: Policy) -> WaitingQueue:
    return WaitingQueue(policy, cached_tokens=lambda one: 0, time=StepTime())


class Counting(Fair):
    """Counts how often a group's rank is asked."""

    asked = 0

    def group_rank(self, group: Hashable, now: float) -> Rank:
        self.asked += 1
        return super().group_rank(group, now)


class Walking(Counting):
    """The same, by a walk through all groups at each choice."""

    group_ranks_rise = False


class Served:
    """A queue under fair share: sequences come, are served and end, as a scheduler has it."""

    def __init__(self, policy: Counting):
        self.policy, self.queue = policy, queue_of(policy)
        self.running: list[Sequence] = []
        self.taken: list[int] = []

    def arrive(self, number: int, tenant: str) -> None:
        one = sequence(number, tenant=tenant, arrival=float(number))
        self.policy.arrived(SequenceView(one))
        self.queue.push(one)

    def take(self, count: int) -> None:
        for one in self.queue.in_order():
            if not count:
                break
            self.queue.take(one)
            one.row, count = 0, count - 1
            self.policy.started(SequenceView(one))
            self.policy.served(SequenceView(one), 1 + one.number % 7, 0, 0.0)
            self.running.append(one)
            self.taken.append(one.number)

    def preempt(self) -> None:
        one = self.running.pop()
        one.row = None
        self.policy.preempted(SequenceView(one))
        self.queue.push(one)

    def end(self, one: Sequence) -> None:
        """Running or waiting."""
        self.policy.left(SequenceView(one))
        self.queue.remove(one)


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_served_as_by_a_walk_through_all(seed: int) -> None:
    draws = random.Random(seed)
    both = Served(Counting()), Served(Walking())
    for number in range(400):
        verb, tenant, index = draws.choice("aaattpebo"), f"t{draws.randrange(9)}", draws.randrange(1000)
        for one in both:
            waiting = sorted(one.queue.everyone(), key=lambda other: other.number)
            if verb == "a":
                one.arrive(number, tenant)
            elif verb == "t":
                one.take(index % 4)
            elif verb == "p" and one.running:
                one.preempt()
            elif verb == "e" and one.running:
                one.end(one.running.pop(index % len(one.running)))
            elif verb == "b" and waiting:
                one.end(waiting[index % len(waiting)])
            elif verb == "o" and one.running:
                one.policy.served(SequenceView(one.running[index % len(one.running)]), 0, index % 5, 0.0)
        assert both[0].taken == both[1].taken
    assert both[0].taken


def test_a_choice_asks_the_first_groups_alone() -> None:
    served = Served(Counting())
    for number in range(1000):
        served.arrive(number, f"t{number % 500}")
    served.policy.asked = 0
    served.take(100)
    assert len(served.taken) == 100 and served.policy.asked < 10 * 100


def test_what_is_taken_out_of_order_leaves_nothing_behind() -> None:
    """As a strategy does that chooses whole batches."""
    queue = queue_of(Fair())
    for number in range(50):
        one = sequence(number, tenant=f"t{number}")
        queue.policy.arrived(SequenceView(one))
        queue.push(one)
        for other in queue.select([number]):
            queue.take(other)
    assert not queue._order._heaps


def test_siblings_wait_until_they_are_released_and_count_as_waiting() -> None:
    queue = queue_of(Fcfs())
    leader, *siblings = (sequence(number, sample=number, n=3) for number in range(3))
    queue.defer_siblings(leader, siblings)
    queue.push(leader)
    queue.take(leader)
    assert len(queue) == 2 and [*queue.in_order()] == [] and {*queue.everyone()} == {*siblings}
    for _ in range(2):
        queue.release_siblings(leader)
    assert len(queue) == 2
    queue.remove(siblings[0])
    queue.remove(siblings[0])
    assert next(queue.in_order()) is siblings[1]
