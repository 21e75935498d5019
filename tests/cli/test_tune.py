"""`inflight tune`: settings found in simulation, checked on the real engine, written with their reasons."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from inflight.cli import call
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.simulate.fitted import FittedModel, Provenance

from .terminal import CommandResult

DEMAND = (
    "--rate",
    8,
    "--input-tokens",
    "lognormal:20:60",
    "--output-tokens",
    "lognormal:6:12",
    "--slo",
    "ttft=400,itl=200",
)


@pytest.fixture
def tune(capfd: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    def ask(*arguments: object) -> CommandResult:
        code = call(["tune", *(str(one) for one in arguments)])
        out, err = capfd.readouterr()
        return CommandResult(code, out, err)

    return ask


@pytest.fixture
def step_model(tmp_path: Path) -> Path:
    capacity = {"num_blocks": 256, "block_size": 16, "max_rows": 32, "max_model_len": 256, "vocab_size": 1000}
    provenance = Provenance("a test", "two cores", "2026-01-01", 100, {"decode": (0.02, 50)}, capacity=capacity)
    path = tmp_path / "steps.json"
    FittedModel(step=0.002, token=(2e-4,), provenance=provenance).save(path)
    return path


def test_a_configuration_comes_with_its_reasons_and_is_served(  # type: ignore[no-untyped-def]
    tune, step_model: Path, tmp_path: Path, tiny: Path
) -> None:
    output = tmp_path / "engine.toml"
    result = tune("--step-model", step_model, *DEMAND, "--output", output, "--json")
    assert result.code == 0, result.err
    settings = tomllib.loads(output.read_text())
    assert {"strategy", "policy", "max-num-seqs", "max-num-batched-tokens", "preemption"} <= set(settings)
    assert "against" in output.read_text()
    found = json.loads(result.out)
    assert found["best"]["settings"] == settings
    assert found["best"]["goodput"] >= found["start"]["goodput"]
    assert "not calibrated" not in output.read_text()
    assert "an engine on cpu with 1 step in flight" in output.read_text()
    assert call(["run", "--model", str(tiny), "--config", str(output), "--max-tokens", "2", "hello"]) == 0


@pytest.mark.wide
@pytest.mark.parametrize("more", [(), ("--turns", 2, "--think", 0.5)])
def test_the_best_are_verified_on_the_real_engine(  # type: ignore[no-untyped-def]
    tune, step_model: Path, tiny: Path, more: tuple[object, ...]
) -> None:
    verified = ("--verify", 2, "--verify-seconds", 1, "--json")
    result = tune("--step-model", step_model, "--model", tiny, *DEMAND, *more, *verified)
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert len(found["verified"]) == 2
    assert all(one["measured_goodput"] > 0 for one in found["verified"])
    assert "On the real engine" in result.err


def test_the_real_engine_runs_without_drafts_as_trials_do(  # type: ignore[no-untyped-def]
    tune, step_model: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    def stopped(settings: object, scheduling: SchedulingSettings) -> None:
        built.append(scheduling.speculation)
        raise SettingsError("It was built.")

    monkeypatch.setattr("inflight.build.build_engine", stopped)
    fixed = ("--max-num-seqs", 4, "--max-num-batched-tokens", 64)
    assert (
        "It was built." in tune("--step-model", step_model, "--model", tiny, *DEMAND, *fixed, "--verify", 1).sentence()
    )
    assert built == ["off"]


@pytest.mark.wide
def test_a_gpu_is_tuned_for_by_its_data_sheet(tune) -> None:  # type: ignore[no-untyped-def]
    result = tune("--model", "llama-3-8b", "--hardware", "h100", "--rate", 5, *DEMAND[2:], "--max-num-seqs", 32)
    assert result.code == 0, result.err
    assert "not calibrated on your hardware" in result.out
    assert tomllib.loads(result.out)["max-num-seqs"] == 32


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--model", "llama-3-8b", "--hardware", "h100", *DEMAND[:-2]), "give one such as --slo"),
        ((*DEMAND,), "give one of them"),
        (("--model", "llama-3-70b", "--hardware", "a100-80", *DEMAND), "KV memory for 0 tokens"),
        (("--model", "llama-3-8b", "--hardware", "h100", *DEMAND, "--verify", 1), "it goes with --step-model"),
        (("--model", "llama-3-8b", "--hardware", "h100", *DEMAND, "--verify", -1), "--verify is -1"),
        (("--model", "llama-3-8b", "--hardware", "h100", *DEMAND, "--verify-repeats", 3), "which only --verify runs"),
        (
            ("--model", "llama-3-8b", "--hardware", "h100", *DEMAND, "--load-format", "dummy"),
            "which only --verify runs",
        ),
    ],
)
def test_mistakes_are_reported_in_a_sentence(tune, arguments: tuple[object, ...], sentence: str) -> None:  # type: ignore[no-untyped-def]
    assert sentence in tune(*arguments).sentence()


def test_a_place_that_cannot_be_written_is_reported_before_the_work(  # type: ignore[no-untyped-def]
    tune, step_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inflight.cli.tune.tune", lambda *given, **more: pytest.fail("it was tuned"))
    for place, sentence in ((tmp_path / "no" / "x.toml", "create it first"), (step_model, "would be overwritten")):
        assert sentence in tune("--step-model", step_model, *DEMAND, "--output", place).sentence()


@pytest.mark.wide
def test_targets_of_classes_are_what_is_tuned_for(tune, step_model: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    classes = tmp_path / "classes.toml"
    table = '[classes.{}]\nshare = 1\ninput = "20"\noutput = "8"\nttft_ms = {}\n'
    classes.write_text(table.format("chat", 500) + table.format("batch", 1))
    given = ("--step-model", step_model, "--classes", classes, "--rate", 5)
    result = tune(*given, "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert 0.3 < found["best"]["attainment"] < 0.7, "no batch request has its first token within a millisecond"
    assert "one set of limits" in tune(*given, "--slo", "ttft=500").sentence()
    assert "as a target of the class" in tune(*given, "--slo", "chat.ttft=500").sentence()


@pytest.mark.wide
def test_a_load_at_which_nothing_matters_is_reported(tune, step_model: Path) -> None:  # type: ignore[no-untyped-def]
    easy = ("--rate", 0.1, *DEMAND[2:])
    result = tune("--step-model", step_model, *easy)
    assert (
        result.code == 0 and "of this matters" in result.err and "of this matters" in " ".join(result.out.split("\n# "))
    )


def test_options_without_effect_are_refused(tune, step_model: Path) -> None:  # type: ignore[no-untyped-def]
    assert "--weights has no effect" in tune("--step-model", step_model, *DEMAND, "--weights", "fp8").sentence()
    assert (
        "--tensor-parallel is about --hardware"
        in tune("--step-model", step_model, *DEMAND, "--tensor-parallel", 2).sentence()
    )


def test_a_step_model_that_says_too_little_is_reported(tune, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "steps.json"
    FittedModel(step=0.002, token=(2e-4,)).save(path)
    assert "does not say how many KV blocks" in tune("--step-model", path, *DEMAND).sentence()
