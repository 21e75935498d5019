"""`inflight simulate`, `replay` and `calibrate` on the command line: what they print, write and refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulate.setups import MODEL

from inflight.cli import call
from inflight.core.features import Features
from inflight.simulate.fitted import FittedModel, Provenance
from inflight.simulate.fitting import settled
from inflight.simulate.steps import Step

CAPACITY = {"num_blocks": 200, "block_size": 16, "max_rows": 8, "max_model_len": 512, "vocab_size": 1000}


@pytest.fixture
def model(tmp_path: Path) -> str:
    sizes = [Features(k, k, k, 40 * k, 0.0) for k in range(1, 9)] + [Features(96, 1, 0, 0, 96 * 400.0)]
    steps = [Step(held, MODEL.seconds(held) * (1 + place % 3 / 50)) for place, held in enumerate(sizes)]
    provenance = Provenance("a test", "a machine", "2026-01-01", 9, capacity={**CAPACITY, "bytes_per_token": 1024.0})
    path = tmp_path / "model.json"
    replace(settled(MODEL, steps), provenance=provenance).save(path)
    return str(path)


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert call(list(arguments)) == code
    out = capsys.readouterr()
    return out.out, out.err


def test_a_simulation_is_told_and_the_same_every_time(capsys: pytest.CaptureFixture[str], model: str) -> None:
    arguments = ("simulate", "--step-model", model, "--rate", "3", "--requests", "60", "--slo", "ttft=500", "--json")
    out, err = said(capsys, *arguments)
    assert said(capsys, *arguments) == (out, err)
    result = json.loads(out)
    assert result["summary"]["requests"] == 54 and result["summary"]["goodput"] > 0
    assert "54 requests answered" in err and "TTFT" in err and "goodput" in err
    assert said(capsys, *arguments, "--noise")[0] != out
    assert said(capsys, *arguments, "--seed", "1")[0] != out


@pytest.mark.parametrize("rate", [8, 30, 500])
def test_a_saturated_simulation_says_so(capsys: pytest.CaptureFixture[str], model: str, rate: int) -> None:
    _, err = said(capsys, "simulate", "--step-model", model, "--rate", str(rate), "--requests", "400")
    assert "saturated" in err and "p99" not in err


def test_extrapolation_is_told(capsys: pytest.CaptureFixture[str], model: str) -> None:
    _, err = said(capsys, "simulate", "--step-model", model, "--rate", "20", "--requests", "40", "--max-num-seqs", "30")
    assert "extrapolated" in err and "the model was fitted on at most" in err


def test_replicas_and_pools(capsys: pytest.CaptureFixture[str], model: str) -> None:
    usual = ("simulate", "--step-model", model, "--rate", "5", "--requests", "40")
    _, err = said(capsys, *usual, "--replicas", "2", "--router", "least-loaded")
    assert "replicas     busy" in err
    _, err = said(capsys, *usual, "--prefill-replicas", "1", "--decode-replicas", "2", "--transfer-gbps", "10")
    assert err.count("%,") == 2
    split = (*usual, "--split-replicas", "3", "--transfer-gbps", "10")
    out, _ = said(capsys, *split, "--slo", "ttft=300", "--json")
    assert {one["prefill_replicas"] for one in json.loads(out)} == {1, 2}
    assert "needs targets" in said(capsys, *split, code=1)[1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--rate", "1", "--arrivals", "poisson:2"), "both say when requests come"),
        (("--rate", "1", "--router", "random"), "known are round-robin"),
        (("--rate", "1", "--replicas", "0"), "--replicas is 0"),
        (("--rate", "1", "--prefill-replicas", "1"), "go together"),
        (("--rate", "1", "--prefill-replicas", "1", "--decode-replicas", "1"), "--transfer-gbps"),
        (("--rate", "1", "--input-tokens", "4000"), "longer than the model's 512 tokens"),
        (("--rate", "1", "--slo", "ttft"), "--slo is 'ttft'"),
        (("--rate", "1", "--speed", "2"), "--speed is about a trace"),
        (("--rate", "1", "--strategy", "chunkd"), "Did you mean chunked?"),
    ],
)
def test_what_cannot_be_is_refused(
    capsys: pytest.CaptureFixture[str], model: str, options: tuple[str, ...], sentence: str
) -> None:
    assert call(["simulate", "--step-model", model, *options]) != 0
    assert sentence in capsys.readouterr().err


def test_a_model_without_its_engine_asks_for_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    MODEL.save(tmp_path / "bare.json")
    _, err = said(capsys, "simulate", "--step-model", str(tmp_path / "bare.json"), "--rate", "1", code=2)
    assert "give --num-blocks" in err


def test_a_simulated_record_replays_and_is_fitted(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    record = str(tmp_path / "r.jsonl")
    said(capsys, "simulate", "--step-model", model, "--rate", "6", "--requests", "60", "--record", record)
    assert "identical" in said(capsys, "replay", record)[1]
    fitted = str(tmp_path / "fitted.json")
    _, err = said(capsys, "calibrate", "--record", record, "--output", fitted)
    assert "held out" in err and "200 KV blocks" in err
    out, err = said(capsys, "replay", record, "--step-model", fitted, "--json")
    result = json.loads(out)
    assert result["difference"] is None and result["step_errors"]["all"][0] < 0.01
    assert "TTFT p50" in err
    _, err = said(capsys, "simulate", "--step-model", record, "--rate", "6", "--requests", "60")
    assert "fitted on" in err


def test_a_changed_record_ends_with_1(capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    said(capsys, "simulate", "--step-model", model, "--rate", "6", "--requests", "20", "--record", str(record))
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    next(line for line in lines if line["kind"] == "step" and line["step"] == 9)["chunks"][0]["start"] += 1
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, err = said(capsys, "replay", str(record), code=1)
    assert "different    after 9 of" in err and "Step 9 differs in its chunks" in err


def test_calibrate_measures_the_engine(capsys: pytest.CaptureFixture[str], bare: Path, tmp_path: Path) -> None:
    output = tmp_path / "model.json"
    options = ("--model", str(bare), "--load-format", "dummy", "--max-num-seqs", "4", "--max-model-len", "256")
    _, err = said(capsys, "calibrate", *options, "--num-blocks", "64", "--seconds", "10", "--output", str(output))
    assert "held out" in err and "noise" in err and "64 KV blocks of 16 tokens" in err
    model = FittedModel.load(output)
    provenance: Any = model.provenance
    assert provenance.capacity["bytes_per_token"] > 0 and set(provenance.held_out) >= {"decode", "all"}
    assert model.seconds(Features(4, 4, 4, 100, 0.0)) > 0
    _, err = said(capsys, "simulate", "--step-model", str(output), "--rate", "2", "--requests", "20")
    assert "requests answered" in err


def test_calibrate_refuses_two_sources(capsys: pytest.CaptureFixture[str], model: str) -> None:
    _, err = said(capsys, "calibrate", "--record", model, "--vllm-result", model, code=2)
    assert "give one of them" in err


def test_calibrate_refuses_settings_of_an_engine_that_it_does_not_start(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    record = str(tmp_path / "r.jsonl")
    said(capsys, "simulate", "--step-model", model, "--rate", "6", "--requests", "20", "--record", record)
    for source in ("--record", "--vllm-result"):
        _, err = said(capsys, "calibrate", source, record, "--max-num-seqs", "4", "--no-prefix-caching", code=2)
        assert f"{source} fits what was measured already" in err
        assert "--max-num-seqs, --no-prefix-caching would change nothing" in err
