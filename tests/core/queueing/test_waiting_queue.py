"""The waiting queue: order, removal, and siblings that wait apart."""

from __future__ import annotations

from inflight.core.policies import Policy
from inflight.core.policies.fcfs import Fcfs
from inflight.core.queueing.waiting_queue import WaitingQueue

from ..builders import sequence


def queue_of(policy: Policy | None = None) -> WaitingQueue:
    return WaitingQueue(policy or Fcfs(), cached_tokens=lambda one: 0)


def drained(queue: WaitingQueue, now: float = 0.0) -> list[int]:
    """Numbers in the order in which they are served, as the step_builder takes them."""
    numbers = []
    for one in queue.in_order(now):
        queue.take(one)
        numbers.append(one.number)
    return numbers


def test_first_come_first_served_by_arrival_then_by_number() -> None:
    queue = queue_of()
    for number, arrival in ((3, 1.0), (1, 2.0), (2, 1.0), (0, 3.0)):
        queue.push(sequence(number, arrival=arrival), 0.0)
    assert len(queue) == 4
    assert drained(queue) == [2, 3, 1, 0]
    assert len(queue) == 0 and drained(queue) == []


def test_removed_sequences_are_skipped_wherever_they_wait() -> None:
    queue = queue_of()
    all_of_them = [sequence(number) for number in range(4)]
    for one in all_of_them:
        queue.push(one, 0.0)
    queue.remove(all_of_them[0])
    queue.remove(all_of_them[2])
    queue.remove(all_of_them[2])
    assert len(queue) == 2
    assert drained(queue) == [1, 3]


def test_siblings_wait_until_they_are_let_go_and_count_as_waiting() -> None:
    queue = queue_of()
    leader, first, second = (sequence(number, sample=number, n=3) for number in range(3))
    queue.defer_siblings(leader, [first, second])
    queue.push(leader, 0.0)
    assert len(queue) == 3
    assert {one.number for one in queue.everyone()} == {0, 1, 2}
    assert drained(queue) == [0]
    assert len(queue) == 2
    assert {one.number for one in queue.everyone()} == {1, 2}
    queue.release_siblings(leader, 0.0)
    queue.release_siblings(leader, 0.0)
    assert len(queue) == 2
    assert drained(queue) == [1, 2]


def test_a_leader_that_is_removed_takes_its_siblings_along() -> None:
    queue = queue_of()
    leader, sibling = sequence(0, n=2), sequence(1, sample=1, n=2)
    queue.defer_siblings(leader, [sibling])
    queue.push(leader, 0.0)
    for one in (leader, sibling):
        queue.remove(one)
    assert len(queue) == 0 and drained(queue) == []
