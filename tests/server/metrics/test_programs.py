"""Job completion times on the page of metrics."""

from __future__ import annotations

import pytest

from inflight.core.types.request import Request
from inflight.server.metrics import programs
from inflight.server.metrics.histogram import Histogram
from inflight.server.metrics.programs import JCT_SECONDS, REST_S, ProgramTimes


def call(times: ProgramTimes, histogram: Histogram, program: str, begins: float, ends: float) -> None:
    request = Request(request_id="r", prompt_token_ids=(1,), arrival=begins, program=program)
    times.ended(times.added(request, histogram), ends)


def test_a_program_counts_once_it_has_rested() -> None:
    times, histogram = ProgramTimes(), Histogram(JCT_SECONDS)
    call(times, histogram, "a", 0.0, 5.0)
    call(times, histogram, "a", 20.0, 40.0)
    call(times, histogram, "", 40.0 + REST_S, 900.0)
    assert histogram.sum() == 0
    call(times, histogram, "", 41.0 + REST_S, 900.0)
    assert histogram.sum() == 40.0


def test_one_that_goes_on_after_a_long_rest_is_another_program() -> None:
    times, histogram = ProgramTimes(), Histogram(JCT_SECONDS)
    call(times, histogram, "a", 0.0, 5.0)
    call(times, histogram, "a", 10.0 + REST_S, 20.0 + REST_S)
    assert histogram.sum() == 5.0
    call(times, histogram, "", 30.0 + 2 * REST_S, 0.0)
    assert histogram.sum() == 15.0


def test_few_programs_are_watched_and_none_that_runs_for_long_counts_before_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs, "MAX_PROGRAMS", 5)
    times, histogram = ProgramTimes(), Histogram(JCT_SECONDS)
    for number in range(50):
        call(times, histogram, f"p{number}", float(number), number + 1.0)
    assert len(times._programs) <= 6 and histogram.sum() == pytest.approx(45.0, abs=2)
    times, histogram = ProgramTimes(), Histogram(JCT_SECONDS)
    slow = times.added(Request(request_id="r", prompt_token_ids=(1,), program="slow"), histogram)
    for later in (1000.0, 2000.0):
        call(times, histogram, "", later, later)
    assert histogram.sum() == 0
    times.ended(slow, 2500.0)
    call(times, histogram, "", 2501.0 + REST_S, 0.0)
    assert histogram.sum() == 2500.0
