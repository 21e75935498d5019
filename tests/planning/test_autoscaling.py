"""Replicas that come and go: a varying load, their start-up, and machines that are lost."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from msgspec import structs

from inflight.metrics.slo import parse_slos
from inflight.planning.autoscaling import (
    BASE_SECONDS,
    Autoscaling,
    LoadProfile,
    autoscaled,
    daily_profile,
    profile_of_trace,
    start_seconds,
)
from inflight.planning.costs import autoscaling_of
from inflight.planning.demand import traffic_of
from inflight.planning.plan import Plan, as_text, plan
from inflight.planning.proposal import Overrides
from inflight.planning.question import FleetQuestion, Question
from inflight.planning.sizing import candidate_for
from inflight.planning.spot import on_spot
from inflight.workload.arrivals import Daily

from .builders import drawn, machine, workload

SUDDEN = LoadProfile((2.0,) * 180 + (20.0,) * 180)


def scaled(profile: LoadProfile, *, start: float = 60.0, allowed: float = 0.01, replicas: int = 10) -> Autoscaling:
    return autoscaled(profile, 10.0, replicas, 1.0, allowed, start, 2.0)


def test_a_slow_swing_is_followed_and_saves_what_is_not_there() -> None:
    found = scaled(daily_profile(Daily(10.0, 100.0, 24)))
    assert found.enough and found.late <= 0.01
    assert (found.replicas_least, found.replicas_most) == (1 + found.spare, 10 + found.spare)
    assert 5 < found.replicas_mean < 8
    assert found.per_hour == pytest.approx(2 * found.replicas_mean)
    assert found.saved_per_hour == pytest.approx(20 - 2 * found.replicas_mean)


def test_a_steady_load_takes_the_planned_replicas() -> None:
    found = scaled(LoadProfile((95.0,) * 360))
    assert found.replicas_mean == 10 and found.late == 0 and found.saved_per_hour == 0


def test_a_sudden_rise_is_late_until_replicas_have_started() -> None:
    profile = LoadProfile((10.0,) * 180 + (90.0,) * 180)
    slow, fast = scaled(profile, start=300.0, allowed=1.0), scaled(profile, start=30.0, allowed=1.0)
    assert slow.late > fast.late > 0
    spared = scaled(profile, start=300.0)
    assert spared.spare > 0 and spared.late < spared.late_without_spare and not spared.enough


def test_starting_replicas_are_paid_for() -> None:
    profile = daily_profile(Daily(10.0, 100.0, 1))
    slow, fast = scaled(profile, start=600.0, allowed=1.0), scaled(profile, start=0.0, allowed=1.0)
    assert slow.replicas_mean > fast.replicas_mean


def test_profiles_have_the_requests_that_there_are() -> None:
    trace = workload(*((float(time), 10, 10) for time in range(100)))
    found = profile_of_trace(trace, 2.0)
    assert sum(found.rates) * 10 == pytest.approx(200) and found.rates[:6] == (2.0,) * 6
    day = daily_profile(Daily(10.0, 30.0, 24))
    assert day.mean == pytest.approx(20.0) and day.hours == pytest.approx(24)
    assert min(day.rates) == pytest.approx(10.0, abs=0.01) and day.rates[0] < day.rates[len(day.rates) // 2]


@pytest.mark.parametrize("seconds", [10, 61, 95, 600])
def test_a_trace_that_ends_within_a_minute_has_its_rate_to_the_end(seconds: int) -> None:
    steady = profile_of_trace(workload(*((0.1 * k, 10, 10) for k in range(10 * seconds))), 1.0)
    assert steady.rates == pytest.approx([10.0] * len(steady.rates), rel=0.02)
    assert steady.hours == pytest.approx(seconds / 3600, abs=5 / 3600)


def test_a_start_loads_the_weights() -> None:
    assert start_seconds(machine()) == BASE_SECONDS


@pytest.mark.parametrize(("loss", "kept"), [(1e-9, 0), (0.05, 1), (0.9, 3)])
def test_more_are_kept_where_more_are_lost(loss: float, kept: int) -> None:
    found = on_spot(20, loss, 60.0, 0.01, 5.0, 3.0, 1.0)
    assert found.kept == kept and found.short <= 0.01
    assert found.per_hour == 20 + kept and found.saved_per_hour == 60 - 20 - kept
    assert found.interrupted == pytest.approx(-math.log1p(-loss) / 3600 * 5.0, rel=1e-2)


def test_machines_that_are_away_most_of_the_time_are_kept_as_often_as_that_takes() -> None:
    found = on_spot(20, 0.5, 7200.0, 0.01, 5.0, 3.0, 1.0)
    away = math.log(2) * 2 / (1 + math.log(2) * 2)
    assert found.enough and 20 / (1 - away) < 20 + found.kept < 2 * 20 / (1 - away)
    beyond = on_spot(20, 0.999, 1e9, 0.01, 5.0, 3.0, 1.0)
    assert not beyond.enough and beyond.short > 0.5


def test_prices_that_are_not_known_are_none() -> None:
    found = on_spot(20, 0.1, 60.0, 0.01, 5.0, None, 1.0)
    assert found.saved_per_hour is None and found.per_hour is not None
    assert on_spot(20, 0.1, 60.0, 0.01, 5.0, 3.0, None).per_hour is None


def test_a_plan_has_both_where_they_are_asked_for() -> None:
    question = Question(
        machines=[machine(price_per_hour=2.0)],
        demand=drawn(20.0),
        slos=parse_slos(["ttft=4000(p90)"]),
        requests=(100, 200, 400),
        fleet=FleetQuestion(daily_profile(Daily(2.0, 20.0, 24)), None, 0.05, 0.5),
    )
    found = plan(question, fast=True)
    assert isinstance(found, Plan) and found.autoscaling is not None and found.spot is not None
    assert found.autoscaling.replicas_mean < found.replicas
    text = as_text(found)
    assert "Autoscaled over the 24 h" in text and "On spot machines" in text and "a fixed number" not in text
    dearer = structs.replace(found.autoscaling, saved_per_hour=-1.0)
    assert "of the peak all the time, so that a fixed number is better" in " ".join(
        as_text(replace(found, autoscaling=dearer)).split()
    )
    assert found.cost is not None and found.cost.mean_rate == pytest.approx(11.0)
    assert found.cost.mean_per_million_output == pytest.approx(20 / 11 * found.cost.per_million_output)
    assert "at the load's mean of 11 requests/s" in text
    without = plan(replace(question, fleet=FleetQuestion()), fast=True)
    assert isinstance(without, Plan) and without.autoscaling is None and without.spot is None


def test_requests_are_late_by_the_hardest_limit_on_their_first_token() -> None:
    def late(*slos: str) -> float:
        question = Question(
            machines=[machine()], demand=drawn(20.0), slos=parse_slos(slos), fleet=FleetQuestion(SUDDEN, 300.0)
        )
        best = replace(candidate_for(question, traffic_of(question.demand), machine(), Overrides()), rate=2.0)
        found = autoscaling_of(question, best, 10)
        assert found is not None
        return found.late_without_spare

    assert late("ttft=500(p99)") == late("ttft=500(p99),ttft=100(p50)") == late("ttft=500(p99),x.ttft=600000(p99)")
    assert late("ttft=500(p99)") > late("ttft=600000(p99)")


def test_bursts_that_replicas_bear_are_not_late() -> None:
    profile = LoadProfile((20.0, 20.0, 20.0, 26.0) * 90)
    bearing = autoscaled(profile, 10.0, 2, 1.0, 0.01, 60.0, 2.0, saturated=14.0)
    assert bearing.late == 0 and bearing.spare == 0
    assert autoscaled(profile, 10.0, 2, 1.0, 0.01, 60.0, 2.0).late_without_spare > 0
