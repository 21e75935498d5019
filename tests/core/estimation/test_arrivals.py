"""The arrival forecast: the usual rate where nothing can be foretold, more of it within a burst."""

from __future__ import annotations

import random

import pytest

from inflight.core.estimation.arrivals import Forecast


def poisson(rate: float, seconds: float, seed: int = 0) -> list[float]:
    rng, times, now = random.Random(seed), [], 0.0
    while (now := now + rng.expovariate(rate)) < seconds:
        times.append(now)
    return times


def fed(times: list[float]) -> Forecast:
    forecast = Forecast()
    for at in times:
        forecast.arrived(at)
    return forecast


def test_nobody_is_expected_where_nobody_ever_came() -> None:
    assert Forecast().expected(5.0, 1.0) == 0.0


@pytest.mark.parametrize("rate", [0.5, 3.0, 40.0])
def test_steady_arrivals_are_foretold_without_bias(rate: float) -> None:
    times, forecast, told = poisson(rate, 600), Forecast(), []
    for at in times:
        if at > 100:
            told.append(forecast.expected(at - 1e-6, 1.0))
        forecast.arrived(at)
    assert sum(told) / len(told) == pytest.approx(rate, rel=0.15)


def test_a_burst_is_noticed_after_bursts_were_seen() -> None:
    """On for two seconds, off for eight: the same arrivals on average as one per second."""
    times = [10 * burst + at for burst in range(40) for at in poisson(5.0, 2.0, seed=burst)]
    start = 400.0
    within = [start + 0.2 * n for n in range(6)]
    forecast = fed([*times, *within])
    assert forecast.expected(within[-1] + 0.05, 1.0) > 2.0
    assert forecast.expected(within[-1] + 6.0, 1.0) < 0.5


def test_clumps_within_a_moment_do_not_pass_for_bursts() -> None:
    """Three at once every two seconds: right after a clump nobody comes, though it was dense."""
    forecast = fed([2.0 * clump + 0.001 * n for clump in range(200) for n in range(3)])
    assert forecast.expected(398.1, 1.0) < 3.0


def test_the_expected_grow_with_the_horizon_and_fade_with_silence() -> None:
    forecast = fed(poisson(2.0, 100))
    assert forecast.expected(100.0, 0.4) == pytest.approx(2 * forecast.expected(100.0, 0.2))
    quiet = [forecast.expected(100.0 + silence, 1.0) for silence in (0, 100, 1000, 10_000)]
    assert quiet == sorted(quiet, reverse=True) and quiet[-1] < 1e-3


def test_times_that_do_not_rise_are_taken_as_the_same_moment() -> None:
    forecast = fed([1.0, 1.0, 0.5, 2.0, 2.0])
    assert forecast.expected(2.0, 1.0) > 0
