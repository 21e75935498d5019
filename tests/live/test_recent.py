from __future__ import annotations

import pytest

from inflight.live.recent import Recent


def test_percentiles_are_right_to_a_fortieth() -> None:
    recent = Recent(10.0)
    for index in range(1, 101):
        recent.itl.add(index / 1000, 0.0)
    rates = recent.end_frame(0.0, 1.0, 0, 100, 0)
    assert rates.itl.count == 100
    assert rates.itl.p50 == pytest.approx(0.050, rel=0.04) and rates.itl.p95 == pytest.approx(0.095, rel=0.04)
    assert rates.output_tokens == 100.0 and rates.itl.mean == 0.0505


def test_what_is_older_than_the_window_counts_no_more() -> None:
    recent = Recent(2.0)
    recent.ttft.add(9.0, 1.0)
    first = recent.end_frame(0.0, 1.0, 10, 5, 1)
    assert (first.ttft.count, first.ttft.with_target, first.ttft.met) == (1, 1, 0)
    for number in (1, 2, 3):
        rates = recent.end_frame(number, number + 1.0, 0, 0, 0)
    assert rates.ttft.count == 0 and rates.prompt_tokens == 0.0 and rates.seconds == 2.0


def test_targets_are_counted_where_there_are_any() -> None:
    recent = Recent(10.0)
    for seconds, target in ((0.1, 0.2), (0.3, 0.2), (0.5, 0.0)):
        recent.itl.add(seconds, target)
    rates = recent.end_frame(0.0, 1.0, 0, 3, 0)
    assert (rates.itl.with_target, rates.itl.met, rates.itl.count) == (2, 1, 3)
