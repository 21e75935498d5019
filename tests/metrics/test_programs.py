"""Job completion times of programs."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.metrics.observation import Observation, completion_times
from inflight.metrics.summary import Window, summarize


def one(intended: float, ended: float, program: str = "p", **more: Any) -> Observation:
    return Observation("r", intended, ended, program=program, **more)


def test_a_program_lasts_from_its_first_request_to_the_end_of_its_last() -> None:
    calls = [one(10.0, 12.0), one(1.0, 3.0), one(5.0, 40.0), one(2.0, 4.0, "q"), one(0.0, 90.0, "")]
    assert completion_times(calls) == [39.0, 2.0], "a request without a program has no JCT"
    assert completion_times([one(1.0, 3.0), one(5.0, 9.0, tenant="b")]) == [2.0, 4.0], "names are a tenant's own"


@pytest.mark.parametrize("outcome", ["failed", "rejected", "unfinished"])
def test_a_program_that_did_not_complete_has_no_time(outcome: Any) -> None:
    assert completion_times([one(1.0, 3.0), one(4.0, 5.0, outcome=outcome), one(2.0, 4.0, "q")]) == [2.0]


def test_a_summary_has_the_programs_that_began_in_its_window() -> None:
    calls = [one(1.0, 2.0), one(8.0, 9.0), one(4.0, 5.0, "q"), one(12.0, 30.0, "q")]
    assert summarize(calls, Window(3.0, 10.0)).jct.mean == 26.0
    assert summarize(calls).jct.samples == 2
    assert summarize([one(0.0, 1.0, "")]).jct.samples == 0
