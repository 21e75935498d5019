"""Recorded steps in their order, and what goes on where the run leaves them."""

from __future__ import annotations

from inflight.core.types.features import Features
from inflight.simulate.recorded import RecordedModel
from inflight.simulate.steps import Step

from .setups import MODEL

ONE, TWO = Features(1, 1, 1, 5, 0.0), Features(2, 2, 2, 5, 0.0)


def test_seconds_come_in_order() -> None:
    model = RecordedModel([Step(ONE, 0.5), Step(TWO, 0.7)], MODEL)
    assert [model.seconds(ONE), model.seconds(TWO)] == [0.5, 0.7]
    assert model.extrapolates(TWO) is None
    assert model.seconds(ONE) == MODEL.seconds(ONE)
    assert "more than the record's 2 steps" in str(model.extrapolates(ONE))


def test_a_run_that_leaves_the_record_does_not_come_back() -> None:
    model = RecordedModel([Step(ONE, 0.5), Step(TWO, 0.7), Step(ONE, 0.5)], MODEL)
    assert [model.seconds(ONE), model.seconds(ONE), model.seconds(ONE)] == [0.5, MODEL.seconds(ONE), MODEL.seconds(ONE)]
    assert "Step 1 holds 1 tokens" in str(model.extrapolates(ONE))
