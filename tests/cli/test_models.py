"""`inflight models`: what runs, what a folder or file is, what the hub's cache holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from models import write_model

from inflight.cli import show
from inflight.execution import memory
from inflight.execution.memory import MachineMemory
from inflight.execution.model_card import ModelCard
from inflight.models.registry import families_naming

from .terminal import Caller


def test_every_family_that_runs_is_listed(inflight: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    answer = json.loads(inflight("models", "--json", model=False).out)
    assert answer["families"] == {one.name: list(one.architectures) for one in families_naming("") if one.runs}
    assert (answer["models"], answer["refused"]) == ([], {})
    assert "In the caches of `inflight pull` and of the hub: 0 models" in inflight("models", model=False).out


def test_a_folder_is_described(inflight: Caller, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "one", "qwen2")
    (card,) = json.loads(inflight("models", str(folder), "--json", model=False).out)["models"]
    assert (card["family"], card["format"], card["refusal"]) == ("qwen2", "float32", None)
    assert card["file_bytes"] == (folder / "model.safetensors").stat().st_size
    assert card["parameters"] == card["active_parameters"] > 0
    assert card["weight_bytes"] == pytest.approx(2 * card["parameters"], rel=0.2)
    assert 0 < card["tokens_per_s"]["1"] < card["tokens_per_s"]["8"]
    (smaller,) = json.loads(inflight("models", str(folder), "--json", "--quantization", "int8-all", model=False).out)[
        "models"
    ]
    assert smaller["weight_bytes"] < card["weight_bytes"]


def test_a_speed_below_ten_tokens_a_second_is_not_shown_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    card = ModelCard("big", "llama", "bfloat16", 10**10, 10**10, 4096, 0, 2 * 10**10, 4096, {1: 0.42, 8: 23.4}, None)
    monkeypatch.setattr(memory, "machine_memory", lambda: MachineMemory(2**40, 2**40, "a test"))
    assert show._row(card)[-2:] == ("0.4", "23")


def test_a_model_that_does_not_fit_has_no_speed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card = ModelCard("big", "llama", "bfloat16", 10**10, 10**10, 4096, 0, 2 * 10**10, 4096, {1: 0.42, 8: 23.4}, None)
    monkeypatch.setattr(memory, "machine_memory", lambda: MachineMemory(2**34, 2**34, "a test"))
    show.print_cards([card])
    out = capsys.readouterr().out
    assert "no weights" in out and "0.4" not in out and show._row(card)[-2:] == ("does not fit", "")
    assert show.card_json(card)["fits"] is False and not show.card_json(card)["tokens_per_s"]
    assert "big does not fit: its weights take 18.6 GiB of memory, and this machine has 16.0 GiB." in out


def test_what_does_not_run_is_described_with_the_reason(inflight: Caller, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "one", "llama")
    config: dict[str, Any] = json.loads((folder / "config.json").read_text()) | {"mlp_bias": True}
    (folder / "config.json").write_text(json.dumps(config))
    result = inflight("models", str(folder), model=False)
    assert result.code == 0 and "does not run: mlp_bias is true" in result.out


def test_the_hubs_cache(inflight: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    at = tmp_path / "models--some--model"
    (at / "refs").mkdir(parents=True)
    (at / "refs" / "main").write_text("0" * 40)
    write_model(at / "snapshots" / ("0" * 40), "qwen2")
    broken = tmp_path / "models--some--other"
    (broken / "snapshots" / ("1" * 40)).mkdir(parents=True)
    (broken / "snapshots" / ("1" * 40) / "config.json").write_text("{}")
    answer = json.loads(inflight("models", "--json", model=False).out)
    assert [card["name"] for card in answer["models"]] == ["some/model"]
    assert "no model's" in answer["refused"]["some/other"]
    assert "some/model" in inflight("models", "some/model", model=False).out
    missing = inflight("models", "some/third", model=False)
    assert missing.code == 1
    assert (
        "some/third is not on this machine: the caches of `inflight pull` and of the hub hold 2 models; `inflight pull "
        "some/third` fetches it." in missing.err
    )


@pytest.mark.parametrize("content", [b"", b"GGUF", b"\0" * 64], ids=["empty", "short", "zeros"])
def test_a_file_that_is_no_model_is_one_sentence(inflight: Caller, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    result = inflight("models", str(tmp_path / "x.gguf"), model=False)
    assert (
        result.code == 1 and result.err.startswith("inflight: ") and result.err.count("\n") == 1
    )  # nothing is measured
