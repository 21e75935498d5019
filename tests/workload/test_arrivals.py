"""Arrivals: rates, burstiness, and the forms they are written in."""

from __future__ import annotations

import statistics
from itertools import islice, pairwise, takewhile
from random import Random

import pytest

from inflight.workload.arrivals import Arrivals, AtOnce, Constant, Daily, Gamma, Poisson, Ramp, parse_arrivals
from inflight.workload.workload import WorkloadError


def gaps(arrivals: Arrivals, number: int = 20_000) -> list[float]:
    times = list(islice(arrivals.times(Random(1)), number))
    assert times == sorted(times)
    return [later - earlier for earlier, later in pairwise([0.0, *times])]


@pytest.mark.parametrize(
    ("arrivals", "spread"),
    [(Poisson(4.0), 1.0), (Gamma(4.0, 0.25), 2.0), (Gamma(4.0, 1.0), 1.0), (Gamma(4.0, 4.0), 0.5)],
)
def test_gaps_have_their_rate_and_the_variation_of_their_burstiness(arrivals: Arrivals, spread: float) -> None:
    found = gaps(arrivals)
    assert statistics.mean(found) == pytest.approx(0.25, rel=0.06)
    assert statistics.stdev(found) / statistics.mean(found) == pytest.approx(spread, rel=0.06)


def test_constant_begins_at_zero_and_keeps_its_step_and_at_once_is_all_at_the_beginning() -> None:
    assert list(islice(Constant(4.0).times(Random(1)), 4)) == [0.0, 0.25, 0.5, 0.75]
    assert list(islice(AtOnce().times(Random(1)), 3)) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("first", "last"), [(0.0, 20.0), (2.0, 20.0), (20.0, 2.0), (8.0, 8.0)])
def test_a_ramp_goes_in_a_straight_line_and_stays(first: float, last: float) -> None:
    times = list(takewhile(lambda time: time < 1500, Ramp(first, last, 1000).times(Random(1))))
    assert times == sorted(times)
    for start, stop in ((0, 250), (250, 500), (500, 750), (750, 1000), (1000, 1500)):
        middle = min((start + stop) / 2, 1000 if start == 1000 else 2000)
        rate = first + (last - first) * min(middle, 1000) / 1000
        came = sum(start <= time < stop for time in times)
        assert came == pytest.approx(rate * (stop - start), rel=0.1)


@pytest.mark.parametrize(
    "text", ["poisson:5", "gamma:5:0.3", "constant:2.5", "ramp:1-10:60", "ramp:0-3:1.5", "daily:5-50:24", "at-once"]
)
def test_what_is_read_writes_itself_as_it_was_read(text: str) -> None:
    assert str(parse_arrivals(text)) == text


def test_arrivals_depend_on_their_generator_alone() -> None:
    arrivals = parse_arrivals("gamma:5:0.3")
    one, two, other = (list(islice(arrivals.times(Random(seed)), 50)) for seed in (3, 3, 4))
    assert one == two != other


@pytest.mark.parametrize(
    "text", ["", "poisson", "poisson:", "poisson:x", "gamma:5", "ramp:1:60", "ramp:1-2", "at-once:3", "uniform:3"]
)
def test_unknown_forms_are_answered_with_those_that_are_known(text: str) -> None:
    with pytest.raises(WorkloadError, match=r"poisson:RATE.*gamma:RATE:BURSTINESS.*constant.*ramp.*at-once"):
        parse_arrivals(text)


@pytest.mark.parametrize("text", ["poisson:0", "poisson:-1", "poisson:nan", "constant:inf", "gamma:5:0", "ramp:1-0:9"])
def test_rates_that_cannot_be_are_refused_with_their_number(text: str) -> None:
    with pytest.raises(WorkloadError, match="give a number above 0"):
        parse_arrivals(text)


def test_a_day_swings_between_its_rates() -> None:
    hours = [0] * 24
    for time in takewhile(lambda time: time < 24 * 3600, Daily(0.0, 0.2).times(Random(3))):
        hours[int(time / 3600)] += 1
    assert sum(hours) == pytest.approx(0.1 * 24 * 3600, rel=0.05)
    assert sum(hours[10:14]) > 5 * sum(hours[:2] + hours[22:])
    assert str(parse_arrivals("daily:5-50")) == "daily:5-50:24"
    with pytest.raises(WorkloadError, match="high rate is 0; give a number above 0"):
        parse_arrivals("daily:0-0")
    with pytest.raises(WorkloadError, match="from 9 to 1; give the lower one first"):
        parse_arrivals("daily:9-1")
