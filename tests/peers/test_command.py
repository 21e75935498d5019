"""The command with no peer installed: inflight alone on a small model, and what is said of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

import benchmarks.peers.__main__ as command
import benchmarks.results as results
from benchmarks.peers.checkpoints import Checkpoints
from benchmarks.peers.trials import measures
from benchmarks.shapes import QWEN25_05B

from .builders import SMALL
from .test_checkpoints import SMALL as SMALL_SHAPE

SHAPE = {**QWEN25_05B, **SMALL_SHAPE, "vocab_size": 32000}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(command, "SHAPES", {"qwen2.5-0.5b": SHAPE})
    monkeypatch.setattr(command, "QUICK", SMALL)
    monkeypatch.setattr(command, "_PEAK_PROBES", 1)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which they are made already."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("made")
    Checkpoints(folder / "models/qwen2.5-0.5b", SHAPE).plain()
    return folder


@pytest.mark.wide
@pytest.mark.usefixtures("small")
def test_peers_that_are_not_installed_are_left_out_and_said(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results.md")
    record = tmp_path / "figures.jsonl"
    given = ["--folder", str(checkpoints), "--quick", "--precisions", "bf16", "--threads", "1", "--alike", "1"]
    command.main([*given, "--set", "max_num_batched_tokens=96", "--record", str(record), "--write"])
    printed = capsys.readouterr().out
    assert "vLLM is left out: there is no environment of it; benchmarks/peers/setup.sh makes one." in printed
    assert "OpenVINO GenAI is left out" in printed
    assert "96 tokens in a step" in printed
    assert "| bf16 | inflight | ratio to the best peer |" in printed
    written = (tmp_path / "results/engines.md").read_text()
    assert printed.strip() in written
    assert str(checkpoints) not in written and str(tmp_path) not in written, "whose folder it was does not matter"
    assert (
        "python -m benchmarks.peers --folder FOLDER --model qwen2.5-0.5b --precisions bf16 --quick --rounds 1"
        in written
    )
    assert len(record.read_text().splitlines()) == 2 + len(list(measures(SMALL))), "words, load and figures"

    command.main([*given, "--rounds", "0", "--record", str(record)])
    again = capsys.readouterr().out
    assert "Medians of 1 round;" in again, "what the file holds counts"
    assert [line for line in again.splitlines() if line.startswith("| decode")] == [
        line for line in printed.splitlines() if line.startswith("| decode")
    ]


@pytest.mark.wide
@pytest.mark.usefixtures("small")
def test_no_round_makes_the_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["--folder", str(tmp_path), "--precisions", "bf16", "--threads", "1", "--rounds", "0", "--write"])
    assert (tmp_path / "models/qwen2.5-0.5b/bf16/model.safetensors").exists()
    said = capsys.readouterr()
    assert said.out == "" and "measures nothing" in said.err


@pytest.mark.wide
@pytest.mark.usefixtures("small")
def test_when_the_time_is_over_a_first_round_is_still_whole(
    checkpoints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--folder", str(checkpoints), "--quick", "--precisions", "bf16,int8", "--threads", "1"]
    command.main([*given, "--rounds", "9", "--minutes", "0"])
    printed = capsys.readouterr().out
    assert "Medians of 1 round;" in printed
    assert "| compared at | engine | layers | output projection | decode 1 |" in printed
    assert "| int8 | inflight | int8, groups of 32 | bf16 |" in printed


@pytest.mark.wide
@pytest.mark.usefixtures("small")
def test_a_setting_that_inflight_does_not_have_leaves_it_out(
    checkpoints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--folder", str(checkpoints), "--quick", "--precisions", "bf16", "--threads", "1"]
    command.main([*given, "--set", "max_num_seats=4"])
    assert "inflight is left out of bf16: exit status 1: TypeError" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--precisions", "bf16,fp4"], "fp4 is unknown; there are bf16, int8"),
        (["--set", "rows"], "NAME=VALUE"),
    ],
)
def test_a_mistake_in_the_options_is_reported_before_anything_starts(
    given: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(["--folder", str(tmp_path), *given])
    assert said in capsys.readouterr().err
