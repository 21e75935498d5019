from __future__ import annotations

import pytest

from inflight.bench import sender
from inflight.bench.client_types import Transcript
from inflight.bench.sender import BodyPrefetcher
from inflight.workload.workload import Entry


class Counting:
    """Bodies of ten bytes, and which were made."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def body(self, index: int, before: Transcript | None) -> tuple[bytes, Transcript]:
        self.made.append(index)
        return f"{index:10}".encode(), f"{before}<{index}"

    def answered(self, conversation: Transcript, text: str, token_ids: tuple[int, ...]) -> Transcript:
        return conversation


def prefetcher_of(count: int, bodies: Counting) -> BodyPrefetcher:
    entries = [Entry(0.0, 1, 1, after=0 if place == 2 else None) for place in range(count)]
    return BodyPrefetcher(entries, [100 + place for place in range(count)], bodies)


def test_each_body_is_made_once_whether_before_its_time_or_at_it() -> None:
    bodies = Counting()
    bag = prefetcher_of(5, bodies)
    bag.make_one()
    assert bag.take(3, None)[0] == b"       103"  # not made yet
    while not bag.full:
        bag.make_one()
    assert [bag.take(place, None)[0] for place in (0, 1, 4)] == [b"       100", b"       101", b"       104"]
    assert sorted(bodies.made) == [100, 101, 103, 104]


def test_what_awaits_an_answer_is_made_when_that_is_there() -> None:
    bodies = Counting()
    bag = prefetcher_of(3, bodies)
    while not bag.full:
        bag.make_one()
    assert bodies.made == [100, 101]
    assert bag.take(2, "before") == (b"       102", "before<102")


def test_no_more_is_made_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "MAX_PREFETCHED_BYTES", 35)
    bodies = Counting()
    bag = prefetcher_of(20, bodies)
    while not bag.full:
        bag.make_one()
    assert bodies.made == [100, 101, 103, 104]
    bag.take(0, None)
    assert not bag.full
