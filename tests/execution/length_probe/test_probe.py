"""The probe on states that say how long an output becomes: error, calibration, censoring, and what it refuses."""

from __future__ import annotations

import io
import zipfile
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.core.types.length_distribution import of_remaining
from inflight.execution.length_probe.calibration import Calibration
from inflight.execution.length_probe.hazards import BINS, Hazards, of_hazards
from inflight.execution.length_probe.probe import MIN_ENDED, Asked, LengthProbe
from inflight.execution.length_probe.probe_file import (
    ProbeFileError,
    arrays_of,
    load_probes,
    model_salt,
    salted,
    write_probes,
)

WIDTH = 32
MAX_OUTPUT = 400


class Answers:
    """Outputs whose logarithmic length is a direction of the prompt's state, but for noise."""

    def __init__(self, seed: int = 1):
        self._draws = np.random.default_rng(seed)
        self._direction = self._draws.standard_normal(WIDTH) / np.sqrt(WIDTH)

    def next(self) -> tuple[np.ndarray, int]:
        """Return a state float32[1, E] and a length."""
        state = self._draws.standard_normal(WIDTH).astype(np.float32)
        length = int(np.exp(4.0 + 1.0 * state @ self._direction + 0.3 * self._draws.standard_normal()))
        return state[None], max(1, length)


def taught(outputs: int, answers: Answers, limit: int = MAX_OUTPUT) -> LengthProbe:
    probe = LengthProbe(WIDTH, "model/")
    for _ in range(outputs):
        state, length = answers.next()
        (read,) = probe.read(state, [Asked(10, 0, limit, False)], [None])
        if read is not None:
            probe.learn([read], min(length, limit), ended=length < limit)
    return probe


def test_it_predicts_and_is_calibrated_where_max_tokens_cuts_outputs() -> None:
    answers = Answers()
    probe = taught(1500, answers, limit=120)  # cuts a fifth
    assert probe.is_ready
    errors, constant, means, actual, below = [], [], [], [], []
    for _ in range(400):
        state, length = answers.next()
        (read,) = probe.read(state, [Asked(10, 0, 120, False)], [None])
        assert read is not None
        lengths, length = of_remaining(probe.predictions([read])[0].tolist(), 120, 0), min(length, 120)
        errors.append(abs(lengths.quantile(0.5) - length))
        constant.append(abs(55 - length))
        means.append(lengths.mean())
        actual.append(length)
        below.append(length <= lengths.quantile(0.8))
    assert np.mean(errors) < 0.6 * np.mean(constant)
    assert np.mean(means) == pytest.approx(np.mean(actual), rel=0.1)
    assert np.mean(below) == pytest.approx(0.8, abs=0.1)


def test_a_cut_output_counts_for_no_more_than_it_shows() -> None:
    """Hazards of a constant feature are shares of those at risk, as in a table of deaths."""
    hazards = Hazards(1)
    one = np.zeros((1, 1), np.float32)
    for _ in range(300):
        hazards.add(one[0], 1, ended=True)
        hazards.add(one[0], 1, ended=False)  # has more than 1
        hazards.add(one[0], 2, ended=True)
    hazards.learn(600)
    found = hazards.probabilities(one)[0]
    assert found[0] == pytest.approx(1 / 3, abs=0.05) and found[1] == pytest.approx(2 / 3, abs=0.05)


def test_probabilities_sum_to_one() -> None:
    drawn = np.random.default_rng(2).random((5, BINS)).astype(np.float32)
    assert of_hazards(drawn).sum(axis=1) == pytest.approx(np.ones(5), abs=1e-5)
    assert Calibration().applied(of_hazards(drawn)).sum(axis=1) == pytest.approx(np.ones(5), abs=1e-5)


def test_calibration_maps_predictions_that_are_always_too_short() -> None:
    calibration, uniform = Calibration(), np.full((1, BINS), 1 / BINS, np.float32)
    for number in range(2000):
        calibration.add(0.5 + number % 50 / 100, ended=True)
    reached = np.cumsum(calibration.applied(uniform)[0])
    assert reached[BINS // 2 - 1] < 0.1 and reached[-1] == pytest.approx(1.0)


def test_states_that_are_not_finite_teach_nothing() -> None:
    plain, disturbed = taught(200, Answers()), LengthProbe(WIDTH, "model/")
    answers, bad = Answers(), np.full((1, WIDTH), np.nan, np.float32)
    asked = [Asked(10, 0, MAX_OUTPUT, False)]
    for _ in range(200):
        state, length = answers.next()
        bad[0, 0] = np.inf
        first, second = disturbed.read(np.vstack((state, bad)), asked * 2, [None, None])
        assert second is None
        if first is not None:
            disturbed.learn([first], min(length, MAX_OUTPUT), ended=length < MAX_OUTPUT)
    for name, values in plain.state().items():
        assert values == pytest.approx(disturbed.state()[name], rel=1e-3, abs=1e-3), name


def test_later_states_are_read_beside_their_prompts() -> None:
    probe, answers = taught(200, Answers()), Answers(2)
    state, _ = answers.next()
    later = Asked(10, 128, MAX_OUTPUT, False)
    assert probe.read(state, [later], [None]) == [None]
    (first,) = probe.read(state, [Asked(10, 0, MAX_OUTPUT, False)], [None])
    (read,) = probe.read(state, [later], [first])
    assert read is not None and len(read.x) == len(first.x) + WIDTH
    probe.learn([first, read], 130, ended=True)


def test_it_predicts_nothing_before_enough_outputs_have_ended() -> None:
    assert not taught(MIN_ENDED, Answers()).is_ready, "the first ones only scale states"


def test_what_was_learnt_is_found_again(tmp_path: Path) -> None:
    path, salt = tmp_path / "probe", model_salt("m", [])
    assert load_probes(path, WIDTH, salt) == {}
    answers = Answers()
    probe = taught(200, answers)
    probe.salt = salted(salt, "")
    write_probes(path, arrays_of({"": probe}))
    again = load_probes(path, WIDTH, salt)[""]
    for name, values in probe.state().items():
        assert np.array_equal(values, again.state()[name]), name


def write_arrays(path: Path, **arrays: Any) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def write_claiming(path: Path, shape: tuple[int, ...]) -> None:
    """Write an array whose header has a shape that the file does not hold."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "<f8", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("version.npy", content.getvalue())


def write_broken_compression(path: Path) -> None:
    write_arrays(path, version=np.zeros(1000))
    content = bytearray(path.read_bytes())
    at = content.find(b"version.npy") + len("version.npy") + 30  # behind the local header
    content[at : at + 10] = b"\xff" * 10
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda path, probe: path.write_bytes(path.read_bytes()[:1000]), "is damaged"),
        (lambda path, probe: path.write_bytes(b"nothing"), "is damaged"),
        (lambda path, probe: write_arrays(path, version=np.array(np.inf)), "is damaged"),
        (lambda path, probe: write_claiming(path, (10**15,)), "is damaged"),
        (lambda path, probe: write_broken_compression(path), "is damaged"),
        (lambda path, probe: write_probes(path, arrays_of({"a": probe})), "of another model"),
    ],
)
def test_files_that_are_damaged_or_of_another_model_are_refused(tmp_path: Path, damage, sentence: str) -> None:
    path = tmp_path / "probe"
    probe = LengthProbe(WIDTH, salted("m", ""))
    write_probes(path, arrays_of({"": probe}))
    damage(path, probe)
    with pytest.raises(ProbeFileError, match=sentence):
        load_probes(path, WIDTH, "m")


@pytest.mark.parametrize("other", [(WIDTH, "other"), (WIDTH + 1, "m")])
def test_a_probe_of_another_model_or_size_is_refused(tmp_path: Path, other: tuple[int, str]) -> None:
    write_probes(tmp_path / "probe", arrays_of({"": LengthProbe(WIDTH, salted("m", ""))}))
    with pytest.raises(ProbeFileError):
        load_probes(tmp_path / "probe", *other)


def test_a_file_with_numbers_that_are_not_finite_is_refused(tmp_path: Path) -> None:
    probe = LengthProbe(WIDTH, salted("m", ""))
    probe.state()["first slopes"][0] = np.nan
    write_probes(tmp_path / "probe", arrays_of({"": probe}))
    with pytest.raises(ProbeFileError, match="not finite"):
        load_probes(tmp_path / "probe", WIDTH, "m")


def test_models_of_one_name_and_size_have_different_salts(tmp_path: Path) -> None:
    for name, content in (("a", b"1" * 200_000), ("b", b"1" * 199_999 + b"2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(content)
    salts = {model_salt("m", [tmp_path / name / "model.safetensors"]) for name in "ab"}
    assert len(salts) == 2


@pytest.mark.parametrize("lie", [1, MAX_OUTPUT - 1])
@pytest.mark.parametrize(("topic", "max_reversed"), [(0.0, 1 / 3), (3.0, 1 / 8)])
def test_a_tenant_whose_outputs_lie_reverses_few_pairs_of_others(lie: int, topic: float, max_reversed: float) -> None:
    """Half of all outputs have one length, whatever their states say: of texts of their own, or of the others'.

    Its states are those that others' prompts have, but for a topic.
    """
    answers, of_topic = Answers(), np.random.default_rng(9).standard_normal(WIDTH).astype(np.float32)
    asked, probe, plain = [Asked(10, 0, MAX_OUTPUT, False)], LengthProbe(WIDTH, "model/"), LengthProbe(WIDTH, "model/")
    for _ in range(800):
        (state, length), (other, _) = answers.next(), answers.next()
        for one in (probe, plain):
            (read,) = one.read(state, asked, [None])
            if read is not None:
                one.learn([read], min(length, MAX_OUTPUT), ended=length < MAX_OUTPUT)
        (read,) = probe.read(other + topic * of_topic, asked, [None])
        if read is not None:
            probe.learn([read], lie, ended=True)
    honest = [answers.next()[0] for _ in range(40)]
    means = [
        [
            of_remaining(one.predictions(one.read(state, asked, [None]))[0].tolist(), MAX_OUTPUT, 0).mean()
            for state in honest
        ]  # type: ignore[arg-type]
        for one in (plain, probe)
    ]
    pairs = list(combinations(range(40), 2))
    assert sum((means[0][a] < means[0][b]) != (means[1][a] < means[1][b]) for a, b in pairs) < max_reversed * len(pairs)
