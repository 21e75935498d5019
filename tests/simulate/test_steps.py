"""Errors by kind, and the noise of equal steps."""

from __future__ import annotations

import random

import pytest

from inflight.core.types.features import Features
from inflight.simulate.fitted import FittedModel
from inflight.simulate.steps import Step, errors_of, noise_of

DECODE, PREFILL = Features(2, 2, 2, 50, 0.0), Features(20, 1, 0, 0, 200.0)
MODEL = FittedModel(0.0, (0.01,))


def test_errors_are_relative_to_what_was_measured_by_kind() -> None:
    errors = errors_of(MODEL, [Step(DECODE, 0.025), Step(DECODE, 0.02), Step(PREFILL, 0.1)])
    assert errors["decode"] == (pytest.approx(0.1), 2)  # 0.02 modelled of 0.025 is 20 % off
    assert errors["prefill"] == (pytest.approx(1.0), 1)
    assert errors["all"] == (pytest.approx(1.2 / 3), 3)
    assert "mixed" not in errors
    assert errors_of(MODEL, []) == {}


@pytest.mark.parametrize("repeats", [2, 3, 20])
def test_noise_is_the_error_of_a_perfect_model_however_often_steps_came(repeats: int) -> None:
    rng = random.Random(0)
    steps = [
        Step(Features(tokens, 1, 1, tokens, 0.0), 0.01 * tokens * (1 + rng.gauss(0, 0.05)))
        for tokens in range(1, 600)
        for _ in range(repeats)
    ]
    perfect = errors_of(MODEL, steps)["all"]
    assert noise_of(steps)["all"] == (pytest.approx(perfect[0], rel=0.12), perfect[1])


def test_steps_without_equals_have_no_noise() -> None:
    assert noise_of([Step(DECODE, 0.025), Step(PREFILL, 0.1)]) == {}
    assert noise_of([Step(DECODE, 0.025), Step(PREFILL, 0.1), Step(PREFILL, 0.1)]) == {
        "prefill": (0.0, 2),
        "all": (0.0, 2),
    }
