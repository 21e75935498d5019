"""A drifting quantile: near the true one, by weight, and following what changes."""

from __future__ import annotations

import math
import random

import pytest

from inflight.core.estimation.quantile import Quantile


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_it_is_near_the_true_one(share: float) -> None:
    rng = random.Random(0)
    drawn = [math.exp(rng.gauss(-3.0, 0.8)) for _ in range(5000)]
    quantile = Quantile(share, memory=1e6)
    for value in drawn:
        quantile.observe(value)
    true = sorted(drawn)[int(share * len(drawn))]
    assert true * 0.97 < quantile.value() < true * 1.08  # type: ignore[operator]


def test_it_counts_by_weight_and_knows_nothing_at_first() -> None:
    quantile = Quantile(0.5, memory=1e6)
    assert quantile.value() is None and quantile.weight == 0
    quantile.observe(1.0, weight=10)
    quantile.observe(9.0, weight=4)
    quantile.observe(0.0)
    quantile.observe(50.0, weight=0)
    assert quantile.value() == pytest.approx(1.0, rel=0.07)
    quantile.observe(9.0, weight=8)
    assert quantile.value() == pytest.approx(9.0, rel=0.07)
    assert quantile.weight == pytest.approx(22, rel=0.01)


def test_it_forgets() -> None:
    quantile = Quantile(0.99, memory=50)
    for value in [5.0] * 400 + [0.1] * 400:
        quantile.observe(value)
    assert quantile.value() == pytest.approx(0.1, rel=0.07)
    assert quantile.weight == pytest.approx(50, rel=0.05)


def test_it_goes_on_for_ever() -> None:
    """Weights grow from observation to observation; they are scaled down before they overflow."""
    quantile = Quantile(0.5, memory=1.0)
    for _ in range(2000):
        quantile.observe(2.0)
    assert quantile.value() == pytest.approx(2.0, rel=0.07) and quantile.weight < 3
