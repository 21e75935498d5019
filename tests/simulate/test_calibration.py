"""Calibration of an engine whose steps are known: it finds them, whatever the host and the noise add."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from inflight.config.assembly import scheduler_for
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, Capacity
from inflight.engine.clock import Clock, MonotonicClock, VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.engine.null import Done, NullExecutor
from inflight.simulate import measuring
from inflight.simulate.calibration import ASKED, calibrate, fitted, warnings
from inflight.simulate.design import Design
from inflight.simulate.fitted import FittedModel, Provenance, StepModelError
from inflight.simulate.measuring import Measured, Round, Rounds, middles, quiet
from inflight.simulate.steps import Step

CAPACITY = Capacity(300, 16, 8, 512, 1000)
TRUE = FittedModel(2e-4, (1e-5,), sample=1e-5, decode_context=1e-8, prefill_context=1e-8)


def executor(noise: float = 0.0, capacity: Capacity = CAPACITY) -> NullExecutor:
    rng = random.Random(0)
    return NullExecutor(capacity, lambda plan: TRUE.seconds(features(plan)) * (1 + rng.uniform(-noise, noise)))


class Sleeper(NullExecutor):
    """Takes the time that it says it takes."""

    def __init__(self) -> None:
        super().__init__(CAPACITY, lambda plan: TRUE.seconds(features(plan)))

    def submit(self, plan: BatchPlan):  # type: ignore[no-untyped-def]
        began = time.perf_counter()
        done = super().submit(plan)
        seconds = done.result().seconds
        while time.perf_counter() - began < seconds:
            pass
        return done


def of(executor: NullExecutor, traffic: NullExecutor, clock: Clock) -> Measured:
    settings = EngineSettings(max_num_seqs=8, max_num_batched_tokens=64)
    loop = EngineLoop(scheduler_for(CAPACITY, settings, SchedulingSettings()), traffic, clock)
    return Measured(executor, loop, 64, {"strategy": "chunked"}, bytes_per_token=100.0)


def measured(noise: float = 0.0) -> Measured:
    """On a clock that the steps alone move, so that nothing depends on the machine that tests it."""
    return of(executor(noise), executor(noise), VirtualClock())


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which others have half of the processors."""
    monkeypatch.setattr(measuring, "others_share", lambda before, after: 0.5)


def test_what_steps_take_is_found() -> None:
    told: list[str] = []
    model = calibrate(measured(), 3.0, told.append)
    for held in (Features(8, 8, 8, 600, 0.0), Features(40, 1, 0, 0, 800.0)):
        assert model.seconds(held) == pytest.approx(TRUE.seconds(held), rel=0.02)
    provenance = model.provenance
    assert provenance is not None
    assert set(provenance.held_out) >= {"decode", "mixed", "all"}
    assert provenance.held_out["all"][1] < provenance.single["all"][1] == provenance.noise["all"][1]
    assert provenance.noise["all"][0] == pytest.approx(0, abs=1e-6)
    assert provenance.capacity["num_blocks"] == 300 and provenance.capacity["bytes_per_token"] == 100.0
    assert provenance.settings == {"strategy": "chunked"} and provenance.steps > 100
    assert told[0].startswith("A round: ") and "rounds in" in told[1]


def test_the_hosts_own_time_is_part_of_what_steps_take() -> None:
    """However much it is here and now: a little more than the steps' own time is right, and less is wrong."""
    model = calibrate(of(Sleeper(), Sleeper(), MonotonicClock()), 1.0)
    for held in (Features(8, 8, 8, 600, 0.0), Features(40, 1, 0, 0, 800.0)):
        assert 0.9 * TRUE.seconds(held) < model.seconds(held)


def test_noise_is_noticed() -> None:
    model = calibrate(measured(noise=0.5), 2.0)
    assert model.provenance is not None and model.provenance.noise["all"][0] > ASKED
    assert any("so much is this machine's noise" in sentence for sentence in warnings(model))


@pytest.mark.usefixtures("busy")
def test_noise_is_noticed_on_a_busy_machine_with_time_for_nothing() -> None:
    """Others spoil every round, and some are left out; of what remains, steps have equals still."""
    told: list[str] = []
    model = calibrate(measured(noise=0.5), 0.01, told.append)
    assert "Measured 3 rounds" in told[1] and "1 are left out" in told[1]
    assert model.provenance is not None and model.provenance.noise["all"][0] > ASKED


def test_what_makes_a_model_doubtful_is_told() -> None:
    good = Provenance("a test", "a machine", "2026-01-01", 9, {"all": (0.01, 9)}, noise={"all": (0.02, 9)}, others=0.0)
    assert warnings(replace(TRUE, provenance=good)) == []
    for bad, word in (
        (replace(good, held_out={"all": (0.2, 9)}), "20.0% off"),
        (replace(good, noise={"all": (0.3, 9)}), "30.0% off their middle"),
        (replace(good, others=0.25), "Others had 25%"),
    ):
        assert [word in sentence for sentence in warnings(replace(TRUE, provenance=bad))] == [True]


def test_rounds_are_alike_and_the_judged_steps_are_others() -> None:
    rounds = Rounds(measured(), 0.3, lambda sentence: None)
    one, other = rounds.measure(), rounds.measure()
    for name in ("designed", "learnt", "judged"):
        first, second = ([step.held for step in getattr(each, name)] for each in (one, other))
        assert first and first == second
    judged, learnt = ({step.held for step in steps} for steps in (one.judged, one.learnt))
    assert len(middles([*one.judged, *other.judged])) == len(judged)
    assert len(judged & learnt) < len(judged) / 2


def test_the_middle_of_equal_steps_forgets_a_stall_and_lies_between_two_speeds() -> None:
    held, other = Features(1, 1, 1, 20, 0.0), Features(2, 2, 2, 40, 0.0)
    stalled = [Step(held, seconds) for seconds in (1.0, 1.0, 90.0, 1.0, 1.0)]
    two_speeds = [Step(other, seconds) for seconds in (2.0, 3.0, 3.0, 2.0)]
    assert middles([*stalled, *two_speeds]) == [Step(held, 1.0), Step(other, 2.5)]


@pytest.mark.parametrize(
    ("others", "kept"),
    [
        ([0.01, 0.5, 0.02, 0.0], [0.0, 0.01, 0.02]),
        ([0.4, 0.01, 0.5, 0.2, 0.3], [0.01, 0.2, 0.3]),
        ([None, None], [None, None]),
    ],
)
def test_rounds_that_others_spoiled_are_left_out(others: list[float | None], kept: list[float | None]) -> None:
    rounds = [Round([], [], [], (1.0, 1.0, 1.0), share) for share in others]
    assert [one.others for one in quiet(rounds)] == kept


def test_serving_adds_a_share_and_what_the_host_does() -> None:
    """Designed steps are told by what they take when served; beyond what was served the model still knows them."""
    designed = [Step(Features(n, 1, 0, 0, 8.0 * n * n), 0.001 * n) for n in range(2, 65) for _ in range(3)]
    designed += [Step(Features(n, n, n, 300 * n, 0.0), 0.001 * n) for n in range(1, 33)]
    learnt = [Step(one.held, 1.5 * one.seconds + 0.002) for one in designed if one.held.tokens <= 16]
    model = fitted(designed, [learnt])
    assert model.seconds(Features(60, 1, 0, 0, 28_800.0)) == pytest.approx(0.092, rel=0.02)
    assert model.ranges["tokens"] == (1, 64)


def test_the_middle_rounds_mean_counts() -> None:
    designed = [Step(Features(n, n, n, 300 * n, 0.0), 0.001 * n) for n in range(1, 33)]
    learnt = [[Step(one.held, slow * one.seconds) for one in designed] for slow in (1.0, 1.01, 3.0)]
    model = fitted(designed, learnt)
    assert model.seconds(designed[9].held) == pytest.approx(1.01 * designed[9].seconds, rel=0.01)
    assert max(model.residuals) > 1.5


def test_what_moving_a_block_takes_is_the_executors_own_figure() -> None:
    swapping = replace(measured(), executor=executor(capacity=replace(CAPACITY, host_blocks=9, copy_seconds=0.25)))
    model = calibrate(swapping, 0.5)
    assert model.moved_block == 0.25
    assert model.extrapolates(Features(1, 1, 1, 20, 0.0, moved_blocks=4)) is None
    assert calibrate(measured(), 0.5).extrapolates(Features(1, 1, 1, 20, 0.0, moved_blocks=4)) is not None


class Broken(NullExecutor):
    def submit(self, plan: BatchPlan):  # type: ignore[no-untyped-def]
        done = super().submit(plan)
        return Done(replace(done.result(), error="it broke", sampled=()))


def test_a_failing_step_is_told() -> None:
    with pytest.raises(StepModelError, match="A step of the calibration failed: it broke"):
        calibrate(of(Broken(CAPACITY), executor(), VirtualClock()), 1.0)
    with pytest.raises(StepModelError, match="it broke"):
        calibrate(of(executor(), Broken(CAPACITY), VirtualClock()), 1.0)


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
