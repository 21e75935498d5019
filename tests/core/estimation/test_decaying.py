"""Decaying averages follow what drifts, and are their priors before."""

from __future__ import annotations

import pytest

from inflight.core.estimation.decaying import DecayingMean, DecayingRatio


def test_a_mean_begins_with_the_first_value_and_moves_by_its_share() -> None:
    mean = DecayingMean(0.25)
    assert mean.value is None
    mean.add(8.0)
    mean.add(4.0)
    assert mean.value == 7.0


def test_a_ratio_is_its_prior_until_there_is_evidence_and_again_when_that_fades() -> None:
    ratio = DecayingRatio(0.5)
    assert ratio.value() == 1.0 and ratio.value(0.3, 2.0) == pytest.approx(0.3)
    ratio.add(6.0, 2.0)
    assert ratio.value() == 3.0 and ratio.value(1.0, 2.0) == 2.0
    ratio.add(1.0, 1.0)
    assert ratio.value() == 4.0 / 2.0
    for _ in range(60):
        ratio.fade(0.5)
    assert ratio.value(0.3, 2.0) == pytest.approx(0.3)
