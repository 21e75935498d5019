"""Trends: a queue that grows, and one that only goes up and down."""

from __future__ import annotations

import random

import pytest

from inflight.metrics.summary import trend


def waits(load: float, seed: int, seconds: float = 300.0) -> list[tuple[float, float]]:
    """Time in system of a queue with one server, Poisson arrivals at 10 a second and exponential service."""
    rng = random.Random(seed)
    now = free = 0.0
    points = []
    while True:
        now += rng.expovariate(10.0)
        if now > seconds:
            return points
        free = max(now, free) + rng.expovariate(10.0 / load)
        points.append((now, free - now))


def growing(load: float) -> int:
    found = [trend(waits(load, seed), 0.0, 300.0) for seed in range(20)]
    return sum(one is not None and one.growing for one in found)


@pytest.mark.parametrize(("load", "least", "most"), [(0.5, 0, 0), (0.8, 0, 2), (1.3, 20, 20), (2.0, 20, 20)])
def test_overload_is_seen_and_ordinary_load_is_not(load: float, least: int, most: int) -> None:
    assert least <= growing(load) <= most


def test_few_requests_have_no_trend() -> None:
    assert trend([(float(n), 1.0) for n in range(20)], 0.0, 20.0) is None
    assert trend([], 0.0, 0.0) is None


def test_latency_that_falls_is_not_growing() -> None:
    falling = trend([(n / 10, 10.0 - n / 100) for n in range(1000)], 0.0, 100.0)
    assert falling is not None and not falling.growing
    assert falling.rise < 0
