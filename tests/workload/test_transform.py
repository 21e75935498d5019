"""Changes of a trace: windows, speed, lengths, spreading; links and notes stay right."""

from __future__ import annotations

import pytest

from inflight.workload.arrivals import Constant
from inflight.workload.traces.rows import Trace
from inflight.workload.transform import limit, retimed, speed, spread, window
from inflight.workload.workload import Entry, WorkloadError


def trace(*entries: Entry, bucket_s: float = 0.0) -> Trace:
    return Trace(entries, "any", len(entries), {}, ("first",), bucket_s)


def arrivals(found: Trace) -> list[float]:
    return [round(entry.arrival, 9) for entry in found.entries]


CHAIN = trace(
    Entry(0.0, 10, 1, session="a"),
    Entry(1.0, 20, 2, session="b"),
    Entry(4.0, 30, 3, session="a", after=0, think_s=2.0),
    Entry(6.0, 40, 4, session="b", after=1),
    Entry(9.0, 50, 5, session="a", after=2),
)


def test_a_window_begins_at_zero_and_knows_who_is_still_there() -> None:
    found = window(CHAIN, 1.0, 8.0)
    assert arrivals(found) == [0.0, 3.0, 5.0]
    assert [entry.after for entry in found.entries] == [None, None, 0]
    assert found.notes == ("first", "Of the trace, 1.0 s to 9.0 s: 3 of 5 requests.")
    assert [entry.after for entry in window(CHAIN, 4.0).entries] == [None, None, 0]


def test_a_limit_keeps_the_first_and_speed_divides_times() -> None:
    found = limit(CHAIN, 3)
    assert [entry.prompt_tokens for entry in found.entries] == [10, 20, 30] and found.entries[2].after == 0
    assert found.notes[-1] == "The first 3 of 5 requests."
    assert limit(CHAIN, 5) is CHAIN
    found = speed(CHAIN, 2.0)
    assert arrivals(found) == [0.0, 0.5, 2.0, 3.0, 4.5] and found.entries[2].think_s == 2.0
    assert "2 times" in found.notes[-1] and speed(CHAIN, 1.0) is CHAIN
    assert speed(trace(*CHAIN.entries, bucket_s=3.0), 2.0).bucket_s == 1.5


def test_spreading_stays_within_the_bucket_and_is_repeatable() -> None:
    clumps = trace(*(Entry(3.0 * (k // 20), 1, 1, prefix=(k,)) for k in range(200)), bucket_s=3.0)
    found = spread(clumps, seed=4)
    first = min(entry.arrival for entry in found.entries)
    assert first == 0.0 and len(set(arrivals(found))) == 200 and arrivals(found) == sorted(arrivals(found))
    assert all(-3 < entry.arrival - 3.0 * (entry.prefix[0] // 20) < 3 for entry in found.entries)
    middles = [entry.arrival % 3 for entry in found.entries]
    assert sum(middles) / 200 == pytest.approx(1.5, abs=0.3)
    assert found.bucket_s == 0.0 and "buckets of 3 s (seed 4)" in found.notes[-1]
    assert spread(clumps, seed=4) == found != spread(clumps, seed=5)
    assert spread(found) is found


def test_spreading_keeps_turns_in_order_and_times_in_their_bucket() -> None:
    found = spread(trace(*(Entry(k * 0.1, 1, 1) for k in range(50)), bucket_s=0.1))
    assert all(abs(entry.arrival - k * 0.1) < 0.1 for k, entry in enumerate(found.entries))
    for seed in range(20):
        found = spread(trace(Entry(0.0, 1, 1), Entry(0.0, 2, 1, after=0), Entry(0.0, 3, 1, after=1)), 3.0, seed)
        assert [entry.prompt_tokens for entry in found.entries] == [1, 2, 3]
        assert [entry.after for entry in found.entries] == [None, 0, 1]


def test_other_arrivals_keep_the_order_of_conversations() -> None:
    found = retimed(CHAIN, Constant(0.5))
    assert arrivals(found) == [0.0, 0.0, 0.0, 2.0, 2.0]
    assert [entry.session for entry in found.entries] == ["a", "a", "a", "b", "b"]
    assert [entry.after for entry in found.entries] == [None, 0, 1, None, 3]


def test_a_trace_becomes_a_workload_with_its_notes() -> None:
    made = CHAIN.workload("chain", concurrency=3)
    assert made.entries == CHAIN.entries and made.notes == ("first",) and made.concurrency == 3
    assert CHAIN.span_s == 9.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: window(CHAIN, 20.0), r"Nothing arrives from 20 s.*9.0 s long"),
        (lambda: window(CHAIN, -1.0), "from -1 s"),
        (lambda: window(CHAIN, 0.0, 0.0), "for 0 s"),
        (lambda: limit(CHAIN, 0), "0 requests"),
        (lambda: speed(CHAIN, 0.0), "is 0"),
        (lambda: spread(CHAIN, -1.0), "is -1 s"),
    ],
)
def test_changes_that_cannot_be_are_refused(change, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(WorkloadError, match=words):
        change()
