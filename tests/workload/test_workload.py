"""Entries that are due: open loop, closed loop, both, conversations; each exactly once and in time."""

from __future__ import annotations

import heapq

import hypothesis.strategies as st
from hypothesis import given

from inflight.workload.workload import Entry, Pacer, Workload


def workload(*arrivals: float, concurrency: int | None = None, closed: bool = False) -> Workload:
    return Workload(tuple(Entry(time, 1, 1) for time in arrivals), "test", concurrency, closed)


def test_loops_wait_for_no_answer_or_count_from_when_one_has_come() -> None:
    pacer = Pacer(workload(0.0, 1.0, 1.0, 5.0))
    assert pacer.next_due() == 0.0 and pacer.take_due(0.0) == [(0, 0.0)]
    assert pacer.take_due(0.5) == [] and pacer.next_due() == 1.0
    assert pacer.take_due(2.0) == [(1, 1.0), (2, 1.0)]
    assert pacer.take_due(9.0) == [(3, 5.0)] and pacer.next_due() is None and not pacer.done
    for index in range(4):
        pacer.ended(index, 9.0)
    assert pacer.done
    pacer = Pacer(workload(0.0, 0.0, 0.0, 0.0, concurrency=2, closed=True))
    assert pacer.take_due(0.0) == [(0, 0.0), (1, 0.0)] and pacer.next_due() is None
    pacer.ended(1, 3.0)
    pacer.ended(0, 4.0)
    assert pacer.next_due() == 0.0
    assert pacer.take_due(6.0) == [(2, 3.0), (3, 4.0)]  # a late send counts as latency
    pacer = Pacer(workload(0.0, 1.0, concurrency=1))
    assert pacer.take_due(2.0) == [(0, 0.0)] and pacer.next_due() is None
    pacer.ended(0, 7.0)
    assert pacer.take_due(7.0) == [(1, 1.0)]


def test_a_turn_waits_for_the_answer_before_it_and_for_thought() -> None:
    turns = (
        Entry(0.0, 1, 1),
        Entry(0.0, 1, 1, after=0, think_s=2.0),
        Entry(30.0, 1, 1, after=0, think_s=2.0),
        Entry(1.0, 1, 1),
    )
    pacer = Pacer(Workload(turns, "test"))
    assert pacer.take_due(1.0) == [(0, 0.0), (3, 1.0)] and pacer.next_due() is None
    pacer.ended(0, 5.0)
    assert pacer.next_due() == 7.0 and pacer.take_due(6.9) == []
    assert pacer.take_due(8.0) == [(1, 7.0)]
    assert pacer.take_due(40.0) == [(2, 30.0)]  # not before its own time


def test_a_conversation_begins_where_another_ends_while_so_many_are_open() -> None:
    entries = (
        Entry(0.0, 1, 1),
        Entry(0.0, 1, 1, after=0, think_s=2.0),
        Entry(1.0, 1, 1),
        Entry(0.0, 1, 1),
        Entry(0.0, 1, 1, after=3),
        Entry(0.0, 1, 1),
    )
    pacer = Pacer(Workload(entries, "test", sessions=2, until=30.0))
    assert pacer.take_due(1.0) == [(0, 0.0), (2, 1.0)] and pacer.next_due() is None
    pacer.ended(0, 3.0)
    assert pacer.next_due() == 5.0  # its next turn, since the conversation has not ended
    pacer.ended(2, 4.0)
    assert pacer.take_due(5.0) == [(3, 4.0), (1, 5.0)]
    pacer.ended(3, 6.0)
    assert pacer.take_due(6.0) == [(4, 6.0)] and pacer.next_due() is None
    for index in (1, 4):
        pacer.ended(index, 40.0)
    assert pacer.take_due(40.0) == [] and pacer.done


def test_a_slot_is_free_during_think_time() -> None:
    turns = (Entry(0.0, 1, 1), Entry(0.0, 1, 1, after=0, think_s=10.0), Entry(0.0, 1, 1))
    pacer = Pacer(Workload(turns, "test", concurrency=1, closed=True))
    assert pacer.take_due(0.0) == [(0, 0.0)]
    pacer.ended(0, 1.0)
    assert pacer.take_due(1.0) == [(2, 1.0)]
    pacer.ended(2, 20.0)
    assert pacer.take_due(20.0) == [(1, 20.0)]


@st.composite
def paced(draw: st.DrawFn) -> tuple[Workload, list[float]]:
    """A workload, and how long each of its entries takes."""
    number = draw(st.integers(1, 25))
    times = sorted(draw(st.lists(st.floats(0, 20), min_size=number, max_size=number)))
    entries = []
    for index, time in enumerate(times):
        after = draw(st.none() | st.integers(0, index - 1)) if index else None
        entries.append(Entry(time, 1, 1, after=after, think_s=draw(st.floats(0, 3)) if after is not None else 0.0))
    concurrency = draw(st.none() | st.integers(1, 4))
    closed = draw(st.booleans()) if concurrency is not None else False
    took = draw(st.lists(st.floats(0, 9), min_size=number, max_size=number))
    return Workload(tuple(entries), "drawn", concurrency, closed), took


@given(paced(), st.floats(0, 2))
def test_each_is_due_once_in_time_and_within_the_bound(case: tuple[Workload, list[float]], late: float) -> None:
    """A sender that looks `late` seconds after an entry is due."""
    workload, took = case
    pacer, now = Pacer(workload), 0.0
    under_way: list[tuple[float, int]] = []  # heap of (end, index)
    ends: dict[int, float] = {}
    seen: set[int] = set()
    while not pacer.done:
        due, end = pacer.next_due(), under_way[0][0] if under_way else None
        assert due is not None or end is not None, "entries are left, and nothing will ever happen"
        if end is not None and (due is None or end <= max(due, now) + late):
            now, index = max(now, end), heapq.heappop(under_way)[1]
            ends[index] = now
            pacer.ended(index, now)
            continue
        assert due is not None
        now = max(now, due) + late
        for index, intended in pacer.take_due(now):
            entry = workload.entries[index]
            assert index not in seen
            seen.add(index)
            assert entry.arrival <= intended <= now
            if entry.after is not None:
                assert intended >= ends[entry.after] + entry.think_s
            if not workload.closed and entry.after is None:
                assert intended == entry.arrival
            heapq.heappush(under_way, (now + took[index], index))
        assert workload.concurrency is None or len(under_way) <= workload.concurrency
    assert seen == set(range(len(workload.entries)))
