"""A run over time."""

from __future__ import annotations

import pytest

from inflight.metrics.definitions import deviation
from inflight.metrics.observation import Observation
from inflight.metrics.summary import series


def one(intended: float, ended: float, times=(), tokens=0, outcome="completed") -> Observation:
    return Observation("r", intended, ended, outcome, token_times=times, output_tokens=tokens or len(times))


def test_each_thing_counts_in_its_own_second():
    found = series([one(0.2, 2.5, (0.9, 1.1, 2.5)), one(1.5, 1.9, (1.8,))])
    assert found.step == 1
    assert found.offered == (1, 1, 0)
    assert found.completed == (0, 1, 1)
    assert found.output_tokens == (1, 2, 1)
    assert found.running == pytest.approx((0.8, 1.4, 0.5))


def test_only_completed_requests_are_completed():
    assert series([one(0.0, 0.5, outcome="failed")]).completed == (0,)


def test_tokens_that_were_not_watched_count_at_the_end():
    assert series([one(0.0, 1.5, tokens=7)]).output_tokens == (0, 7)


def test_a_long_run_has_larger_pieces():
    found = series([one(0.0, 10_000.0)])
    assert found.step == 5
    assert len(found.offered) == 2001
    assert found.running[1000] == pytest.approx(1.0)


def test_nothing_is_one_empty_second():
    assert series([]).offered == (0,)


def test_deviation_divides_by_n():
    assert deviation([1.0, 3.0]) == 1.0
    assert deviation([]) is None
