"""Calibration of an engine whose steps are known: it finds them, whatever the host and the noise add."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from inflight.assembly import scheduler_for
from inflight.config import EngineSettings
from inflight.core.features import Features, features
from inflight.core.plan import BatchPlan, Capacity
from inflight.engine.clock import MonotonicClock
from inflight.engine.loop import EngineLoop
from inflight.engine.null import NullExecutor
from inflight.scheduling import SchedulingSettings
from inflight.simulate.calibration import NOISY, Measured, calibrate, warnings
from inflight.simulate.design import Design
from inflight.simulate.fitted import FittedModel, Provenance

CAPACITY = Capacity(300, 16, 8, 512, 1000)
TRUE = FittedModel(2e-4, (1e-5,), sample=1e-5, decode_context=1e-8, prefill_context=1e-8)


class Sleeper(NullExecutor):
    """Takes the time that it says it takes."""

    def __init__(self, noise: float = 0.0):
        rng = random.Random(0)
        super().__init__(CAPACITY, lambda plan: TRUE.seconds(features(plan)) * (1 + rng.uniform(-noise, noise)))

    def submit(self, plan: BatchPlan):  # type: ignore[no-untyped-def]
        began = time.perf_counter()
        done = super().submit(plan)
        seconds = done.result().seconds
        while time.perf_counter() - began < seconds:
            pass
        return done


def measured(noise: float = 0.0) -> Measured:
    settings = EngineSettings(max_num_seqs=8, max_num_batched_tokens=64)
    loop = EngineLoop(scheduler_for(CAPACITY, settings, SchedulingSettings()), Sleeper(noise), MonotonicClock())
    return Measured(Sleeper(noise), loop, 64, {"strategy": "chunked"}, bytes_per_token=100.0)


def test_what_steps_take_is_found() -> None:
    """The host's own time comes on top of the steps', so that a little more is right, and less is wrong."""
    told: list[str] = []
    model = calibrate(measured(), 3.0, told.append)
    for held in (Features(8, 8, 8, 600, 0.0), Features(40, 1, 0, 0, 800.0)):
        assert 0.9 * TRUE.seconds(held) < model.seconds(held)
    provenance = model.provenance
    assert provenance is not None
    assert set(provenance.held_out) >= {"decode", "mixed", "all"}
    assert provenance.capacity["num_blocks"] == 300 and provenance.capacity["bytes_per_token"] == 100.0
    assert provenance.settings == {"strategy": "chunked"} and provenance.steps > 100
    assert provenance.noise is not None
    assert any("rounds of" in sentence for sentence in told)


def test_noise_is_noticed() -> None:
    model = calibrate(measured(noise=0.5), 2.0)
    assert model.provenance is not None and model.provenance.noise is not None
    assert model.provenance.noise > NOISY
    assert any("something else uses this machine" in sentence for sentence in warnings(model))


def test_a_quiet_exact_fit_has_no_warnings() -> None:
    provenance = Provenance("a test", "a machine", "2026-01-01", 9, {"all": (0.01, 9)}, 0.01)
    assert warnings(replace(TRUE, provenance=provenance)) == []
    off = replace(provenance, held_out={"all": (0.2, 9)})
    assert ["20.0% off" in sentence for sentence in warnings(replace(TRUE, provenance=off))] == [True]


@pytest.mark.parametrize(
    ("capacity", "budget", "tokens"),
    [
        (CAPACITY, 64, 5000),
        (Capacity(40, 16, 8, 512, 1000), 64, 5000),
        (Capacity(5000, 16, 32, 4096, 1000), 96, 24_000),
        (Capacity(64, 16, 1, 128, 1000), 1, 100),
        (Capacity(3000, 16, 4, 8192, 1000), 2048, 24_000),
    ],
)
def test_designed_steps_are_plans_that_an_executor_takes(capacity: Capacity, budget: int, tokens: int) -> None:
    """The null executor notices every wrong block and skipped position. Rounds are alike."""
    executor, design = NullExecutor(capacity), Design(capacity, budget, tokens)
    held: list[list[Features]] = []
    step = 0
    for freed in ((), tuple(range(capacity.max_rows))):
        held.append([])
        for plan in design.round(step, freed):
            assert plan.step == step and plan.tokens <= budget
            assert executor.submit(plan).result().error is None
            held[-1].append(features(plan))
            step += 1
    assert held[0] == held[1]
    assert sum(one.tokens for one in held[0]) <= 2 * tokens + 3000
    assert {one.tokens for one in held[0] if not one.prefill_context} >= set(design.widths()) - {0}
