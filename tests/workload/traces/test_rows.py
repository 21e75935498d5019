"""Rows: what is kept, what is counted as broken, and what is noticed of times."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from inflight.workload.traces.rows import NO_OUTPUT, Rows
from inflight.workload.workload import WorkloadError


def rows(*arrivals: float) -> Rows:
    found = Rows(Path("trace"))
    for line, arrival in enumerate(arrivals, 1):
        found.take(line, arrival, 10, 5)
    return found


def test_times_begin_at_zero_and_rows_are_put_in_order() -> None:
    trace = rows(100.0, 103.0, 98.5, 104.0, 99.0).finish("any")
    assert [entry.arrival for entry in trace.entries] == [0.0, 0.5, 1.5, 4.5, 5.5]
    assert any("above them: 2" in note for note in trace.notes)
    assert not rows(100.0, 103.0, 98.5).finish("any", in_order=False).notes


@pytest.mark.parametrize(
    ("arrival", "prompt_tokens", "output_tokens", "reason"),
    [
        (math.nan, 1, 1, "malformed: its time"),
        (math.inf, 1, 1, "malformed: its time"),
        (0.0, -1, 1, "malformed: a length outside"),
        (0.0, 1, -1, "malformed: a length outside"),
        (0.0, 2**31, 1, "malformed: a length outside"),
        (0.0, 0, 1, "no prompt tokens"),
        (0.0, 1, 0, NO_OUTPUT),
    ],
)
def test_figures_that_cannot_be_are_dropped_with_the_reason(
    arrival: float, prompt_tokens: int, output_tokens: int, reason: str
) -> None:
    found = rows(1.0, 2.0)
    assert not found.take(3, arrival, prompt_tokens, output_tokens)
    trace = found.finish("any")
    assert len(trace.entries) == 2 and trace.rows == 3
    ((reason_shown, count),) = trace.dropped.items()
    assert reason_shown.startswith(reason) and count == 1
    assert any("Dropped 1 of 3 rows" in note and "line 3" in note for note in trace.notes)


def test_a_file_with_mostly_malformed_rows_or_without_any_is_refused() -> None:
    found = rows(1.0, 2.0)
    for line in (3, 4):
        found.broken(line, "not JSON")
    assert found.finish("any").rows == 4
    found.broken(5, "not JSON")
    with pytest.raises(WorkloadError, match=r"3 of 5 rows are malformed.*not JSON, first in line 3"):
        found.finish("any")
    with pytest.raises(WorkloadError, match="of 0: there are none"):
        rows().finish("any")
    found = rows()
    found.take(1, 0.0, 5, 0)
    with pytest.raises(WorkloadError, match="of 1: 1: no output tokens"):
        found.finish("any")


@pytest.mark.parametrize(
    ("arrivals", "bucket"),
    [
        ([0, 0, 3, 3, 9], 3.0),
        ([0, 0.5, 0.5, 2], 0.5),
        ([0, 3, 6, 9], 0.0),  # as regular as this, but none come together
        ([0, 0, 3, 3.001], 0.0),
        ([0, 0, 0, 0], 0.0),
        ([0, 0, 0.05, 0.1], 0.0),
        ([0, 0, 1 / 3, 3], 0.0),
    ],
)
def test_times_that_were_rounded_are_noticed(arrivals: list[float], bucket: float) -> None:
    trace = rows(*(1000.0 + arrival for arrival in arrivals)).finish("any")
    assert trace.bucket_s == bucket
    assert any("multiples" in note for note in trace.notes) == (bucket > 0)


@pytest.mark.wide
def test_a_long_gap_is_noted() -> None:
    busy = [k * 0.5 for k in range(600)]
    assert not rows(*busy).finish("any").notes
    (note,) = rows(*busy, *(4000 + time for time in busy)).finish("any").notes
    assert "Nothing comes for 3,700 s from 300 s on" in note
