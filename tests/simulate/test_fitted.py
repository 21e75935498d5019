"""Fitted step models: least squares, coefficients, knots, noise, errors by kind, files."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from msgspec import structs

from inflight.core.types.features import Features
from inflight.simulate.fitted import FittedModel, NoisyModel, Provenance, StepModelError
from inflight.simulate.nnls import nnls
from inflight.simulate.step_fit import fit, held_out_errors, normalized
from inflight.simulate.steps import Step, TimedStep, errors_of, kind_of, noise_of, rounds


@pytest.mark.parametrize(
    ("matrix", "target", "found"),
    [
        ([[1, 1], [1, 2], [1, 3], [1, 5]], [2.5, 3.0, 3.5, 4.5], [2.0, 0.5]),
        ([[1, 1], [1, 2], [1, 3]], [3.0, 2.0, 1.0], [2.0, 0.0]),  # a negative coefficient becomes zero
        ([[1, 0], [2, 0]], [1.0, 2.0], [1.0, 0.0]),
    ],
)
def test_nnls_finds_what_made_the_target(matrix: list[list[float]], target: list[float], found: list[float]) -> None:
    assert nnls(np.array(matrix, float), np.array(target)) == pytest.approx(found)


@given(st.integers(0, 10_000), st.integers(1, 7), st.integers(0, 3))
@settings(deadline=None, max_examples=150)
def test_no_step_from_it_is_better(seed: int, columns: int, doubled: int) -> None:
    """Karush, Kuhn and Tucker: the gradient is 0 where x > 0, and nowhere would more help. Columns may be equal."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(columns + 8, columns)) * 10.0 ** rng.integers(-4, 5, size=columns)
    matrix = np.hstack([matrix, matrix[:, :doubled]])
    target = rng.normal(size=len(matrix))
    found = nnls(matrix, target)
    scale = np.sqrt((matrix**2).sum(axis=0))
    descent = matrix.T @ (target - matrix @ found) / scale
    assert (found >= 0).all()
    assert (descent <= 1e-7).all()
    assert (np.abs(descent[found * scale > 1e-9]) <= 1e-7).all()


TRUE = FittedModel(0.02, (0.001,), sample=0.0005, decode_context=1e-6, prefill_context=2e-6)
RIDGE = FittedModel(0.02, (0.0001, 0.002), knots=(32,))


def sizes(number: int = 200, seed: int = 0) -> list[Features]:
    rng = random.Random(seed)
    found = []
    for _ in range(number):
        width, prompt = rng.randint(0, 32), rng.choice([0, rng.randint(2, 96)])
        width = width or not prompt
        samples = width + (bool(prompt) and rng.random() < 0.3)
        contexts = width * rng.randint(1, 800), prompt * (rng.randint(0, 500) + prompt / 2)
        found.append(Features(width + prompt, width + bool(prompt), samples, *contexts))
    return found


def steps(model: FittedModel, noise: float = 0.0, number: int = 200) -> list[Step]:
    rng = random.Random(1)
    return [Step(features, model.seconds(features) * (1 + rng.gauss(0, noise))) for features in sizes(number)]


def test_coefficients_are_found_again_and_it_says_when_it_extrapolates() -> None:
    model = fit(steps(TRUE))
    for features in sizes(50, seed=3):
        assert model.seconds(features) == pytest.approx(TRUE.seconds(features), rel=1e-3)
    assert not model.knots
    with pytest.raises(StepModelError, match="There are 5 measured steps"):
        fit(steps(TRUE, number=5))
    model = fit(steps(TRUE))
    most = int(model.ranges["tokens"][1])
    assert "prompt_chunks" not in model.ranges, "no seconds are of it"
    assert model.extrapolates(Features(most, 1, 1, 0, 0.0)) is None
    sentence = model.extrapolates(Features(2 * most, 1, 1, 0, 0.0))
    assert sentence is not None and f"{2 * most:,} tokens" in sentence and f"{most:,}" in sentence


def test_a_ridge_is_found_and_segments_are_those_of_its_knots() -> None:
    model = fit(steps(RIDGE))
    assert any(16 <= knot <= 48 for knot in model.knots)
    assert errors_of(model, steps(RIDGE, number=50))["all"][0] < 0.01
    features = [Features(tokens, 1, 1, 0, 0.0) for tokens in (10, 32, 40)]
    assert [RIDGE.seconds(one) for one in features] == pytest.approx([0.021, 0.0232, 0.0392])


def test_the_output_layer_is_read_once_and_changes_kernels_with_the_others() -> None:
    true = FittedModel(0.01, (1e-4, 2e-3), sample=1e-4, knots=(24,), output_layer=0.007, late_sample=5e-4)
    model = fit(steps(true, number=400))
    assert model.output_layer == pytest.approx(0.007, rel=0.02) and model.late_sample == pytest.approx(5e-4, rel=0.1)
    assert errors_of(model, steps(true, number=50))["all"][0] < 0.01
    chunk = Features(8, 1, 0, 0, 32.0)
    assert true.seconds(structs.replace(chunk, samples=1)) - true.seconds(chunk) == pytest.approx(0.0071)
    assert true.seconds(Features(30, 30, 30, 30, 0.0)) == pytest.approx(0.01 + 24e-4 + 6 * 2.5e-3 + 0.007 + 30e-4)


@given(st.integers(1, 80), st.lists(st.integers(1, 10**6), max_size=5), st.sampled_from([(), (8,), (8, 40)]))
def test_the_seconds_of_many_decodes_are_those_of_each(rows: int, contexts: list[int], knots: tuple[int, ...]) -> None:
    tokens = (1e-4, 2e-3, 3e-3)[: len(knots) + 1]
    model = FittedModel(0.01, tokens, 3e-5, 1e-4, 1.7e-8, 1e-9, 1e-6, 0.007, 5e-4, knots)
    each = [model.seconds(Features(rows, rows, rows, context, 0.0)) for context in contexts]
    assert model.decode_seconds(rows, contexts) == each


def test_outliers_do_not_bend_the_fit_but_its_mean_holds_them() -> None:
    measured = [
        replace(one, seconds=one.seconds * (4 if place % 25 == 0 else 1)) for place, one in enumerate(steps(TRUE))
    ]
    model = fit(measured)
    ratio = sum(one.seconds / model.seconds(one.features) for one in measured) / len(measured)
    assert ratio == pytest.approx(1.0)
    shape = [model.seconds(one.features) / TRUE.seconds(one.features) for one in measured]
    assert max(shape) / min(shape) < 1.02
    assert max(model.residuals) > 3


def test_held_out_errors_are_those_of_the_noise() -> None:
    errors = held_out_errors(steps(TRUE, noise=0.05, number=600), ())
    assert set(errors) == {"decode", "prefill", "mixed", "all"}
    held = Features(4, 4, 4, 100, 0.0), Features(40, 1, 0, 0, 800.0), Features(44, 5, 4, 100, 800.0)
    assert [kind_of(one) for one in held] == ["decode", "prefill", "mixed"]
    assert 0.03 < errors["all"][0] < 0.05  # the mean of |normal(0, 0.05)| is 0.04
    assert sum(count for kind, (_, count) in errors.items() if kind != "all") == errors["all"][1] == 600


def made_by(settings: dict[str, Any], **more: Any) -> Provenance:
    return Provenance("a test", "a machine", "2026-01-01", 3, settings=settings, **more)


def test_a_file_comes_back(tmp_path: Path) -> None:
    provenance = made_by(
        {"a": 1}, held_out={"all": (0.01, 3)}, single={"all": (0.03, 9)}, noise={"decode": (0.02, 9), "all": (0.02, 9)},
        others=0.01, capacity={"num_blocks": 5},
    )  # fmt: skip
    model = replace(normalized(RIDGE, steps(RIDGE)), provenance=provenance)
    model.save(tmp_path / "model.json")
    assert FittedModel.load(tmp_path / "model.json") == model


def test_a_file_from_before_the_output_layer_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    TRUE.save(path)
    content = json.loads(path.read_text())
    del content["output_layer"], content["late_sample"]
    path.write_text(json.dumps(content))
    assert FittedModel.load(path) == TRUE


@pytest.mark.parametrize(
    ("settings", "device", "depth"),
    [
        ({}, "cpu", 1),
        ({"device": "cuda:1"}, "cuda:1", 2),
        ({"device": "cuda:1", "depth": 1}, "cuda:1", 1),
        ({"device": "cpu", "depth": 2}, "cpu", 2),
    ],
)
def test_device_and_depth_are_those_of_the_measured_engine(settings: dict[str, Any], device: str, depth: int) -> None:
    model = replace(TRUE, provenance=made_by(settings))
    assert (model.device, model.depth) == (device, depth)


@pytest.mark.parametrize("depth", [0, 3, "2", 1.5])
def test_steps_in_flight_that_no_engine_has_are_refused(tmp_path: Path, depth: object) -> None:
    replace(TRUE, provenance=made_by({"depth": depth})).save(tmp_path / "model.json")
    with pytest.raises(StepModelError, match="steps in flight, where engines have 1 or 2"):
        FittedModel.load(tmp_path / "model.json")


@pytest.mark.parametrize(
    "text", ["", "{}", '{"kind": "step model", "version": 99}', '{"kind": "step model", "version": 1}', "[1]"]
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(StepModelError, match="is no step model"):
        FittedModel.load(tmp_path / "model.json")


def test_noise_is_seeded_and_has_the_mean() -> None:
    model = normalized(TRUE, steps(TRUE, noise=0.2, number=2000))
    features = Features(10, 10, 10, 500, 0.0)
    drawn = [[NoisyModel(model, seed).seconds(features) for _ in range(1)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    noisy = NoisyModel(model, 0)
    mean = sum(noisy.seconds(features) for _ in range(20_000)) / 20_000
    assert mean == pytest.approx(model.seconds(features), rel=0.01)
    assert noisy.extrapolates(features) is None
    with pytest.raises(StepModelError, match="no residuals"):
        NoisyModel(TRUE, 0)


@pytest.mark.parametrize(
    ("times", "lasted"),
    [
        # It went on with sequence 1: the round before lasted 0.12. Later, it may have rested: the usual 0.01 are added.
        ([(0.0, 0.11, 1), (0.12, 0.23, 1), (5.0, 5.11, 2)], [0.12, 0.12, 0.12]),
        (  # Planned while the one before was computed: from commit to commit.
            [(0.0, 0.11, 1), (0.01, 0.21, 1), (0.12, 0.31, 1), (0.33, 0.44, 1), (5.0, 5.11, 2)],
            [0.11, 0.1, 0.12, 0.13, 0.13],
        ),
    ],
)
def test_a_round_is_from_plan_to_plan_while_the_engine_is_busy(
    times: list[tuple[float, float, int]], lasted: list[float]
) -> None:
    features = Features(1, 1, 1, 10, 0.0)
    timed = [TimedStep(features, 0.1, planned, committed, frozenset({n})) for planned, committed, n in times]
    assert [one.seconds for one in rounds(timed)] == pytest.approx(lasted)


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
