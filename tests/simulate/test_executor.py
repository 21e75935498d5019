"""The simulated executor on the real loop: time is the model's, and nothing else's."""

from __future__ import annotations

import time

import pytest

from inflight.core.features import Features
from inflight.core.plan import BatchPlan, Capacity, Chunk
from inflight.core.predictor import Quantiles
from inflight.core.request import Request
from inflight.scheduling import SchedulingSettings
from inflight.simulate.executor import SimulatedExecutor
from inflight.simulate.recorded import RecordedModel
from inflight.simulate.simulation import Setup, simulate
from inflight.simulate.steps import Step

from .setups import MODEL, Affine, chat, pool


def test_a_step_takes_what_the_model_says() -> None:
    executor = SimulatedExecutor(Capacity(8, 16, 2, 64, 100), Affine())
    plan = BatchPlan(0, (Chunk(7, 0, 0, 5, (0,), True), Chunk(8, 1, 0, 3, (1,), False, range(0, 2))))
    result = executor.submit(plan).result()
    assert result.seconds == pytest.approx(0.018)
    assert [(one.sequence_id, one.token_ids) for one in result.sampled] == [(7, (0,))]
    assert [(one.sequence_id, one.start, len(one.logprobs)) for one in result.scored] == [(8, 1, 2)]
    assert (executor.steps, executor.busy) == (1, result.seconds)


def test_predictor_wall_time_never_reaches_the_virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(pool(SchedulingSettings(policy="sjf")))
    plain = simulate(chat(), setup).observations
    quick, asked = Quantiles.predict, []

    def slow(self: Quantiles, request: Request, most_output: int, so_far: int) -> float:
        if len(asked) < 40:
            time.sleep(0.005)
        asked.append(request.request_id)
        return quick(self, request, most_output, so_far)

    monkeypatch.setattr(Quantiles, "predict", slow)
    assert simulate(chat(), setup).observations == plain
    assert len(asked) > 30


def test_steps_beyond_the_model_are_counted() -> None:
    held_so_far = [Features(2, 1, 1, 0, 2.0)]
    model = RecordedModel([Step(held, 0.5) for held in held_so_far], MODEL)
    run = simulate(chat(3), Setup(pool(model=model)))
    ((sentence, steps),) = run.extrapolated.items()
    assert "Step 0 holds" in sentence and steps == run.steps
