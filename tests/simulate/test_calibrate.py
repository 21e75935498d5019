"""Calibration of an engine whose steps are known: it finds them, whatever the host and the noise add."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from inflight.config.assembly import scheduler_for
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.executor import Done
from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, Capacity
from inflight.engine.clock import Clock, VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.simulate.calibrate import (
    MAX_ERROR,
    Account,
    CalibrationTarget,
    Round,
    Rounds,
    calibrate,
    filter_noisy,
    fit_rounds,
    others_share,
    read_account,
    trimmed_means,
    warnings,
)
from inflight.simulate.fitted import FittedModel, Provenance, StepModelError
from inflight.simulate.steps import Step
from inflight.testing.null import NullExecutor

CAPACITY = Capacity(300, 16, 8, 512, 1000)
HOST_SECONDS = 2.5e-4
TRUE = FittedModel(2e-4, (1e-5,), sample=1e-5, decode_context=1e-8, prefill_context=1e-8)


def executor(noise: float = 0.0, capacity: Capacity = CAPACITY) -> NullExecutor:
    rng = random.Random(0)
    return NullExecutor(capacity, lambda plan: TRUE.seconds(features(plan)) * (1 + rng.uniform(-noise, noise)))


class Host(VirtualClock):
    """The host takes a quarter of a millisecond beside each step."""

    def passed(self, seconds: float) -> None:
        super().passed(seconds + HOST_SECONDS)


def of(executor: NullExecutor, traffic: NullExecutor, clock: Clock) -> CalibrationTarget:
    settings = EngineSettings(max_num_seqs=8, max_num_batched_tokens=64)
    loop = EngineLoop(scheduler_for(CAPACITY, settings, SchedulingSettings()), traffic, clock)
    return CalibrationTarget(executor, loop, 64, {"strategy": "chunked"}, bytes_per_token=100.0)


def target(noise: float = 0.0) -> CalibrationTarget:
    """On a clock that the steps alone move, so that nothing depends on the machine that tests it."""
    return of(executor(noise), executor(noise), VirtualClock())


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which others have half of the processors."""
    monkeypatch.setattr("inflight.simulate.calibrate.others_share", lambda before, after: 0.5)


def test_what_steps_take_is_found() -> None:
    said: list[str] = []
    model = calibrate(target(), 3.0, said.append)
    for one in (Features(8, 8, 8, 600, 0.0), Features(40, 1, 0, 0, 800.0)):
        assert model.seconds(one) == pytest.approx(TRUE.seconds(one), rel=0.02)
    provenance = model.provenance
    assert provenance is not None
    assert set(provenance.held_out) >= {"decode", "mixed", "all"}
    assert provenance.held_out["all"][1] < provenance.single["all"][1] == provenance.noise["all"][1]
    assert provenance.noise["all"][0] == pytest.approx(0, abs=1e-6)
    assert provenance.capacity["num_blocks"] == 300 and provenance.capacity["bytes_per_token"] == 100.0
    assert provenance.settings == {"strategy": "chunked"} and provenance.steps > 100
    assert said[0].startswith("A round: ") and "rounds in" in said[1]


def test_the_hosts_own_time_is_part_of_what_steps_take() -> None:
    model = calibrate(of(executor(), executor(), Host()), 1.0)
    for one in (Features(8, 8, 8, 600, 0.0), Features(40, 1, 0, 0, 800.0)):
        assert model.seconds(one) == pytest.approx(TRUE.seconds(one) + HOST_SECONDS, rel=0.1)


def test_noise_is_noticed() -> None:
    model = calibrate(target(noise=0.5), 2.0)
    assert model.provenance is not None and model.provenance.noise["all"][0] > MAX_ERROR
    assert any("so much is this machine's noise" in sentence for sentence in warnings(model))


@pytest.mark.usefixtures("busy")
def test_noise_is_noticed_on_a_busy_machine_with_time_for_nothing() -> None:
    """Others spoil every round, and some are left out; of what remains, steps have equals still."""
    said: list[str] = []
    model = calibrate(target(noise=0.5), 0.01, said.append)
    assert "Measured 3 rounds" in said[1] and "1 are left out" in said[1]
    assert model.provenance is not None and model.provenance.noise["all"][0] > MAX_ERROR


def test_what_makes_a_model_doubtful_is_reported() -> None:
    good = Provenance("a test", "a machine", "2026-01-01", 9, {"all": (0.01, 9)}, noise={"all": (0.02, 9)}, others=0.0)
    assert warnings(replace(TRUE, provenance=good)) == []
    for bad, word in (
        (replace(good, held_out={"all": (0.2, 9)}), "20.0% off"),
        (replace(good, noise={"all": (0.3, 9)}), "30.0% off their median"),
        (replace(good, others=0.25), "Others had 25%"),
    ):
        assert [word in sentence for sentence in warnings(replace(TRUE, provenance=bad))] == [True]


def test_rounds_are_alike_and_the_holdout_steps_are_others() -> None:
    rounds = Rounds(target(), 0.3, lambda sentence: None)
    one, other = rounds.measure(), rounds.measure()
    for name in ("designed", "training", "holdout"):
        first, second = ([step.features for step in getattr(each, name)] for each in (one, other))
        assert first and first == second
    holdout, training = ({step.features for step in steps} for steps in (one.holdout, one.training))
    assert len(trimmed_means([*one.holdout, *other.holdout])) == len(holdout)
    assert len(holdout & training) < len(holdout) / 2


def test_the_middle_of_equal_steps_forgets_a_stall_and_lies_between_two_speeds() -> None:
    features, other = Features(1, 1, 1, 20, 0.0), Features(2, 2, 2, 40, 0.0)
    stalled = [Step(features, seconds) for seconds in (1.0, 1.0, 90.0, 1.0, 1.0)]
    two_speeds = [Step(other, seconds) for seconds in (2.0, 3.0, 3.0, 2.0)]
    assert trimmed_means([*stalled, *two_speeds]) == [Step(features, 1.0), Step(other, 2.5)]


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
    assert [one.others for one in filter_noisy(rounds)] == kept


def test_serving_adds_a_share_of_the_middle_round_and_what_the_host_does() -> None:
    """Designed steps count with what serving adds to them; beyond what was served the model still knows them."""
    designed = [Step(Features(n, 1, 0, 0, 8.0 * n * n), 0.001 * n) for n in range(2, 65) for _ in range(3)]
    designed += [Step(Features(n, n, n, 300 * n, 0.0), 0.001 * n) for n in range(1, 33)]
    training = [Step(one.features, 1.5 * one.seconds + 0.002) for one in designed if one.features.tokens <= 16]
    model = fit_rounds(designed, [training])
    assert model.seconds(Features(60, 1, 0, 0, 28_800.0)) == pytest.approx(0.092, rel=0.02)
    assert model.ranges["tokens"] == (1, 64)
    designed = [Step(Features(n, n, n, 300 * n, 0.0), 0.001 * n) for n in range(1, 33)]
    training = [[Step(one.features, slow * one.seconds) for one in designed] for slow in (1.0, 1.01, 3.0)]
    model = fit_rounds(designed, training)
    assert model.seconds(designed[9].features) == pytest.approx(1.01 * designed[9].seconds, rel=0.01)
    assert max(model.residuals) > 1.5


def test_what_moving_a_block_takes_is_the_executors_own_figure() -> None:
    swapping = replace(
        target(), executor=executor(capacity=structs.replace(CAPACITY, host_blocks=9, copy_seconds=0.25))
    )
    model = calibrate(swapping, 0.5)
    assert model.moved_block == 0.25
    assert model.extrapolates(Features(1, 1, 1, 20, 0.0, moved_blocks=4)) is None
    assert calibrate(target(), 0.5).extrapolates(Features(1, 1, 1, 20, 0.0, moved_blocks=4)) is not None


class Broken(NullExecutor):
    def submit(self, plan: BatchPlan):  # type: ignore[no-untyped-def]
        done = super().submit(plan)
        return Done(structs.replace(done.result(), error="it broke", sampled=()))


def test_a_failing_step_is_an_error() -> None:
    with pytest.raises(StepModelError, match="A step of the calibration failed: it broke"):
        calibrate(of(Broken(CAPACITY), executor(), VirtualClock()), 1.0)
    with pytest.raises(StepModelError, match="it broke"):
        calibrate(of(executor(), Broken(CAPACITY), VirtualClock()), 1.0)


def test_others_are_what_is_neither_idle_nor_ones_own() -> None:
    before, after = Account(total=100.0, others=41.0), Account(total=120.0, others=44.0)
    assert others_share(before, after) == 3 / 20
    assert others_share(before, Account(120.0, 39.0)) == 0.0  # ticks are coarse
    assert others_share(before, before) is None
    assert others_share(None, after) is None


def test_a_processors_line_is_read_and_where_the_system_does_not_say_nothing_is_known(tmp_path: Path) -> None:
    tick = os.sysconf("SC_CLK_TCK")
    stat = tmp_path / "stat"
    lines = [f"cpu{number} 10 20 30 100 40 5 6 7 9 0" for number in range(4096)]
    stat.write_text("\n".join(["cpu 0 0 0 0 0 0 0 0 0 0", *lines, "intr 5"]))
    usable = len(os.sched_getaffinity(0))
    worked, own = 78 * usable / tick, sum(os.times()[:2])
    found = read_account(stat)
    assert found is not None and found.total == pytest.approx(218 * usable / tick)
    assert worked - sum(os.times()[:2]) - 1e-6 <= found.others <= worked - own + 1e-6
    assert read_account(tmp_path / "none") is None
    (tmp_path / "short").write_text("cpu0 1 2 3\n")
    assert read_account(tmp_path / "short") is None
    (tmp_path / "other").write_text("something else\n")
    assert read_account(tmp_path / "other") is None
