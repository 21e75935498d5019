"""The simulated executor on the real loop: time is the model's, and nothing else's."""

from __future__ import annotations

import time

import pytest

from inflight.config.scheduling import SchedulingSettings
from inflight.core.estimation.output_length import Quantiles
from inflight.core.types.features import Features, features
from inflight.core.types.length_distribution import LengthDistribution
from inflight.core.types.plan import BatchPlan, Capacity, Chunk
from inflight.core.types.request import Request
from inflight.simulate.condensed_plan import AlikeSteps, CondensedPlan
from inflight.simulate.executor import SimulatedExecutor
from inflight.simulate.fitted import FittedModel, NoisyModel
from inflight.simulate.simulation import SimulationSetup, simulate

from .setups import MODEL, Affine, chat, pool


def test_a_step_takes_what_the_model_says_and_accepts_drafts_of_the_token() -> None:
    executor = SimulatedExecutor(Capacity(8, 16, 2, 64, 100), Affine())
    plan = BatchPlan(0, (Chunk(7, 0, 0, 5, (0,), True), Chunk(8, 1, 0, 3, (1,), False, range(0, 2))))
    result = executor.submit(plan).result()
    assert result.seconds == pytest.approx(0.018)
    assert [(one.sequence_id, one.token_ids) for one in result.sampled] == [(7, (0,))]
    assert [(one.sequence_id, one.start, len(one.logprobs)) for one in result.scored] == [(8, 1, 2)]
    assert (executor.steps, executor.busy) == (1, result.seconds)
    executor = SimulatedExecutor(Capacity(8, 16, 2, 64, 100), Affine())
    given = [(0, 0), (0, 1, 0), (1,)]
    chunks = [Chunk(n, n, 5, 1 + len(one), (n,), 1 + len(one), draft_token_ids=one) for n, one in enumerate(given)]
    result = executor.submit(BatchPlan(0, tuple(chunks))).result()
    assert [one.token_ids for one in result.sampled] == [(0, 0, 0), (0, 0), (0,)]


def test_predictor_wall_time_never_reaches_the_virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = SimulationSetup(pool(SchedulingSettings.of(policy="sjf")))
    plain = simulate(chat(), setup).observations
    quick, asked = Quantiles.lengths, []

    def slow(self: Quantiles, request: Request, max_output_tokens: int, so_far: int) -> LengthDistribution:
        if len(asked) < 40:
            time.sleep(0.005)
        asked.append(request.request_id)
        return quick(self, request, max_output_tokens, so_far)

    monkeypatch.setattr(Quantiles, "lengths", slow)
    assert simulate(chat(), setup).observations == plain
    assert len(asked) >= 30


def test_foreseen_steps_take_what_their_steps_take() -> None:
    """Added in the order of steps, so that the clock stands where stepping would have left it, bit by bit."""
    executor, alone = (SimulatedExecutor(Capacity(8, 16, 2, 64, 100), MODEL) for _ in range(2))
    foreseen = executor.foresee(AlikeSteps(3, 100, 50), 0.1)
    assert foreseen is not None
    while not foreseen.complete:
        executor.foresee_more(foreseen)
    now, context = 0.1, 100
    for time_ in foreseen.times[1:]:
        now += alone.take_step(Features(3, 3, 3, context, 0.0))
        context += 3
        assert time_ == now
    assert executor.steps == 0
    executor.compute(foreseen, 50)
    assert (executor.steps, executor.busy) == (alone.steps, alone.busy) == (50, alone.busy)


def test_each_step_has_features_of_its_own() -> None:
    class Keeping(Affine):
        def seconds(self, features: Features) -> float:
            kept.append(features)
            return 0.01

    kept: list[Features] = []
    SimulatedExecutor(Capacity(8, 16, 2, 64, 100), Keeping()).foresee(AlikeSteps(2, 80, 3), 0.0)
    assert [one.decode_context for one in kept] == [80, 82, 84]


def test_steps_that_were_foreseen_and_never_taken_leave_no_trace() -> None:
    """With noise, too: the steps that replace them draw what they would have drawn."""
    noisy = FittedModel(0.01, (1e-4,), residuals=(0.5, 0.9, 1.6))
    executor, alone = (SimulatedExecutor(Capacity(8, 16, 2, 64, 100), NoisyModel(noisy, 1)) for _ in range(2))
    one_step = Features(2, 2, 2, 80, 0.0)
    executor.compute(executor.foresee(AlikeSteps(2, 80, 40), 0.0), 1)
    executor.compute(executor.foresee(AlikeSteps(2, 82, 30), 0.1), 0)
    later = [executor.take_step(one_step) for _ in range(60)]
    assert [alone.take_step(one_step) for _ in range(61)][1:] == later
    assert (executor.steps, executor.busy) == (alone.steps, alone.busy)


def test_steps_beyond_the_model_are_counted() -> None:
    class Beyond(Affine):
        def extrapolates(self, features: Features) -> str | None:
            return "Nothing was measured."

    run = simulate(chat(3), SimulationSetup(pool(model=Beyond())))
    assert run.extrapolated == {"Nothing was measured.": run.steps}


def test_steps_that_are_left_out_have_the_features_of_their_plans() -> None:
    """Prompts are counted among them: of a plan without its decodes, and of steps that are taken at once."""
    decodes = tuple(Chunk(number, number, 9 + number, 1, (), 1) for number in range(3))
    prompt = Chunk(3, 3, 16, 5, (), 0)
    whole = features(BatchPlan(0, (*decodes, prompt)))
    assert AlikeSteps(3, 10 + 11 + 12, 2, chunk=5, start=16).features(0) == whole
    condensed = CondensedPlan(0, (prompt,), omitted=3, omitted_context=10 + 11 + 12)
    assert condensed.all_features(features(condensed)) == whole
    assert AlikeSteps(3, 10 + 11 + 12, 2).features(0) == features(BatchPlan(0, decodes))
