"""`inflight simulate`, `replay` and `calibrate` on the command line: what they print, write and refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from simulate.setups import MODEL, saved_model

from inflight.cli import call
from inflight.core.strategies.chunked import EARLY_END
from inflight.core.types.features import Features
from inflight.simulate.fitted import FittedModel

HYBRID = "qwen3.5-27b"
CAPACITY = {"num_blocks": 200, "block_size": 16, "max_rows": 8, "max_model_len": 512, "vocab_size": 1000}


@pytest.fixture
def model(tmp_path: Path) -> str:
    return saved_model(tmp_path / "model.json", CAPACITY)


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert call(list(arguments)) == code
    out = capsys.readouterr()
    return out.out, out.err


def test_a_simulation_is_reported_and_the_same_every_time(capsys: pytest.CaptureFixture[str], model: str) -> None:
    arguments = ("simulate", "--step-model", model, "--rate", "3", "--requests", "60", "--slo", "ttft=500", "--json")
    out, err = said(capsys, *arguments)
    assert said(capsys, *arguments) == (out, err)
    result = json.loads(out)
    assert result["summary"]["requests"] == 54 and result["summary"]["goodput"] > 0
    assert "54 requests answered" in err and "TTFT" in err and "goodput" in err
    assert said(capsys, *arguments, "--noise")[0] != out
    assert said(capsys, *arguments, "--seed", "1")[0] != out


def test_programs_are_judged_by_their_completion(capsys: pytest.CaptureFixture[str], model: str) -> None:
    usual = ("simulate", "--step-model", model, "--rate", "2", "--requests", "60", "--slo", "jct=9000,ttft=900")
    out, err = said(capsys, *usual, "--turns", "3", "--think", "2", "--json")
    (found,) = json.loads(out)["programs"]
    assert found["limit_s"] == 9.0 and found["programs"] > 15 and 0 < found["share"] < 1
    assert "programs within JCT ≤ 9,000 ms" in err and "goodput" in err
    _, err = said(capsys, *usual, code=2)
    assert "all requests are single ones; give --turns" in err


@pytest.mark.parametrize("rate", [8, 30, 500])
def test_a_saturated_simulation_says_so(capsys: pytest.CaptureFixture[str], model: str, rate: int) -> None:
    _, err = said(capsys, "simulate", "--step-model", model, "--rate", str(rate), "--requests", "400")
    assert "saturated" in err and "p99" not in err


def test_extrapolation_is_reported(capsys: pytest.CaptureFixture[str], model: str) -> None:
    _, err = said(capsys, "simulate", "--step-model", model, "--rate", "20", "--requests", "40", "--max-num-seqs", "30")
    assert "extrapolated" in err and "the model was fitted on at most" in err


FIXTURES = Path(__file__).parents[1] / "workload" / "fixtures"


@pytest.mark.parametrize("trace", ["azure_2023.csv", "mooncake.jsonl", "prompts.jsonl", "sharegpt.json"])
def test_a_trace_is_simulated(capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path, trace: str) -> None:
    """Also one of texts, of which nothing but the length is needed."""
    larger = json.loads(Path(model).read_text())
    larger["provenance"]["capacity"] |= {"num_blocks": 20_000, "max_model_len": 200_000}
    path = tmp_path / "larger.json"
    path.write_text(json.dumps(larger))
    out, _ = said(
        capsys, "simulate", "--step-model", str(path), "--trace", str(FIXTURES / trace), "--warmup", "0", "--json"
    )
    summary = json.loads(out)["summary"]
    assert summary["requests"] > 0 and summary["failed"] == 0


def test_replicas_and_pools(capsys: pytest.CaptureFixture[str], model: str) -> None:
    usual = ("simulate", "--step-model", model, "--rate", "5", "--requests", "40")
    _, err = said(capsys, *usual, "--replicas", "2", "--router", "least-loaded")
    assert "replicas     busy" in err
    _, err = said(capsys, *usual, "--prefill-replicas", "1", "--decode-replicas", "2", "--transfer-gbps", "10")
    assert err.count("%,") == 2
    split = (*usual, "--split-replicas", "3", "--transfer-gbps", "10")
    out, _ = said(capsys, *split, "--slo", "ttft=300", "--json")
    assert {one["prefill_replicas"] for one in json.loads(out)} == {1, 2}
    assert "needs targets" in said(capsys, *split, code=2)[1]


@pytest.mark.wide
def test_replicas_that_scale(capsys: pytest.CaptureFixture[str], model: str) -> None:
    usual = ("simulate", "--step-model", model, "--rate", "400", "--requests", "4000", "--max-num-seqs", "4")
    out, err = said(capsys, *usual, "--max-replicas", "3", "--replica-start-seconds", "1", "--json")
    scaling = json.loads(out)["scaling"]
    (_, one), (later, three) = scaling["over_time"][:2]
    assert (one, three) == (1, 3) and later >= 4.0, "three seconds for which they are wanted, and one to start"
    assert scaling["replica_seconds"] > later + 3 * 1.0
    assert "replica-seconds (with 3 all the time" in err and "1 from 0 s, 3 from" in err
    assert len(json.loads(out)["replicas"]) >= 3


DISK = ("--kv-disk-read-gb-per-s", "2", "--kv-disk-write-gb-per-s", "1", "--kv-bytes", "4096")


@pytest.mark.wide
def test_tiers_bring_what_the_prefix_cache_evicted(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    """Conversations of which few fit."""
    usual = ("simulate", "--step-model", model, "--rate", "2", "--turns", "8", "--think", "9", "--requests", "120")
    usual = (*usual, "--input-tokens", "40", "--output-tokens", "16", "--num-blocks", "90", "--max-num-seqs", "4")

    def cached(*options: str) -> tuple[int, str]:
        out, err = said(capsys, *usual, *options, "--json")
        return json.loads(out)["summary"]["cached_tokens"], err

    without, err = cached()
    assert "tiers " not in err
    kept, err = cached("--kv-cache-disk", "1", *DISK)
    assert kept > 1.1 * without
    assert "Folder: 16,384 blocks; each 33 µs to read and 66 µs to write" in err and "were fetched" in err
    host, err = cached("--kv-cache-host", "1", "--kv-host-gb-per-s", "8", "--kv-bytes", "4096")
    assert host > 1.1 * without
    assert "Host: 16,384 blocks of 16 tokens, 8 µs each way, within the steps." in err
    (folder := tmp_path / "folder").mkdir()
    measured, err = cached("--kv-cache-dir", str(folder), "--kv-bytes", "4096")
    assert "Folder: 163,840 blocks" in err and measured > without
    assert not list(folder.iterdir())


@pytest.mark.wide
def test_pools_that_scale_and_ask_first(capsys: pytest.CaptureFixture[str], model: str) -> None:
    pools = ("--prefill-replicas", "1", "--decode-replicas", "1", "--transfer-gbps", "10", "--decode-asks", "first")
    scaling = ("--max-prefill-replicas", "3", "--max-decode-replicas", "3", "--replica-start-seconds", "1")
    usual = ("simulate", "--step-model", model, "--rate", "400", "--requests", "4000", "--max-num-seqs", "4")
    out, err = said(capsys, *usual, *pools, *scaling, "--json")
    assert set(json.loads(out)["scaling"]) == {"prefill", "decode"}
    assert "prefill      1 to" in err and "decode       1 to" in err and "a decode engine is asked at once" in err


POOLS = ("--rate", "1", "--prefill-replicas", "1", "--decode-replicas", "1")


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
        (("--rate", "1", "--slo", "ttft=500(p95)"), "--slo names a percentile"),
        (("--rate", "1", "--transfer-gbps", "10"), "--transfer-gbps is about transfers to a decode pool"),
        ((*POOLS, "--transfer-gbps", "10", "--transfer-setup-ms", "-1000"), "--transfer-setup-ms is -1000"),
        ((*POOLS, "--transfer-gbps", "0"), "--transfer-gbps is 0; give gigabits per second"),
        ((*POOLS, "--transfer-gbps", "nan"), "--transfer-gbps is nan"),
        ((*POOLS, "--transfer-gbps", "10", "--kv-bytes", "-8"), "--kv-bytes is -8"),
        (("--rate", "1", "--transfer-setup-ms", "10"), "--transfer-setup-ms is about transfers to a decode pool"),
        (("--rate", "1", "--kv-bytes", "10"), "--kv-bytes is about transfers to a decode pool"),
        (("--rate", "1", "--split-replicas", "3", "--replicas", "2", "--transfer-gbps", "1"), "--replicas counts"),
        (("--rate", "1", "--split-replicas", "3", "--record", "x.jsonl"), "--record has no effect"),
        (("--rate", "1", "--replicas", "3", "--max-replicas", "2"), "--max-replicas is 2, and there are 3"),
        (("--rate", "1", "--replica-start-seconds", "5"), "give --max-replicas as well"),
        (("--rate", "1", "--max-replicas", "2", "--replica-start-seconds", "-5"), "--replica-start-seconds is -5"),
        (("--rate", "1", "--max-replicas", "2", "--html", "x.html"), "--html plays engines that are there all"),
        ((*POOLS, "--transfer-gbps", "10", "--max-replicas", "4"), "has no effect with two pools"),
        (
            (*POOLS, "--transfer-gbps", "10", "--max-decode-replicas", "0"),
            "--max-decode-replicas is 0, and there are 1",
        ),
        ((*POOLS, "--transfer-gbps", "10", "--no-prefix-caching"), "found in the prefix cache"),
        (("--rate", "1", "--max-prefill-replicas", "4"), "--max-prefill-replicas is about pools"),
        (("--rate", "1", "--decode-asks", "first"), "--decode-asks is about pools"),
        (("--rate", "1", "--first-token", "prefill"), "--first-token is about pools"),
        (
            ("--rate", "1", "--split-replicas", "3", "--transfer-gbps", "1", "--max-decode-replicas", "4"),
            "--split-replicas searches its size",
        ),
        (("--rate", "1", "--kv-eviction", "fifo"), "known are lru, sessions"),
        (("--rate", "1", "--kv-cache-disk", "1", "--kv-bytes", "4096"), "or a folder on it with --kv-cache-dir"),
        (("--rate", "1", "--kv-cache-disk", "-1"), "--kv-cache-disk is -1 GiB"),
        (("--rate", "1", "--kv-cache-disk", "1", *DISK, "--no-prefix-caching"), "--no-prefix-caching is given"),
        (("--rate", "1", *DISK), "is about a folder of blocks, and there is none"),
        (("--rate", "1", "--kv-disk-read-gb-per-s", "0", "--kv-cache-disk", "1"), "--kv-disk-read-gb-per-s is 0"),
        (("--rate", "1", "--kv-cache-disk", "1", *DISK, "--kv-disk-setup-ms", "-1"), "--kv-disk-setup-ms is -1"),
        (("--rate", "1", "--kv-host-gb-per-s", "5"), "about blocks on the host, and there are none"),
        (("--rate", "1", "--kv-cache-host", "0"), "--kv-cache-host"),
        (("--rate", "1", "--speed", "2"), "--speed is about a trace"),
        (("--rate", "1", "--record", "nowhere/r.jsonl"), "nowhere does not exist; create it first"),
        (("--rate", "1", "--strategy", "chunkd"), "Did you mean chunked?"),
    ],
)
def test_what_cannot_be_is_refused(
    capsys: pytest.CaptureFixture[str], model: str, options: tuple[str, ...], sentence: str
) -> None:
    assert call(["simulate", "--step-model", model, *options]) != 0
    assert sentence in capsys.readouterr().err


LLAMA = ("simulate", "--model", "llama-3-70b", "--hardware", "a100-80", "--tensor-parallel", "4")
LITTLE = ("--rate", "2", "--requests", "40", "--input-tokens", "600", "--output-tokens", "40")


def test_a_gpu_by_its_data_sheet(capsys: pytest.CaptureFixture[str]) -> None:
    """The output says what it rests on, and how far off it may be."""
    out, err = said(capsys, *LLAMA, *LITTLE, "--json")
    assert "a100-80 × 4, data sheet and published efficiencies, not calibrated on your hardware" in err
    assert "256 sequences, steps of 2,304 tokens" in err
    result = json.loads(out)
    assert result["calibrated"] is False
    slow, usual, fast = (
        one["ttft"]["p50"] for one in (result["uncertain"]["slow"], result["summary"], result["uncertain"]["fast"])
    )
    assert slow > 1.1 * usual > 1.1 * 1.1 * fast
    assert "uncertain    TTFT p50" in err
    assert said(capsys, *LLAMA, *LITTLE, "--json") == (out, err)


def test_ends_of_latencies_and_of_attainment_are_of_the_same_requests(capsys: pytest.CaptureFixture[str]) -> None:
    """TPOT is of the decode pool, whose steps are further off than those of the prefill pool."""
    pools = ("--prefill-replicas", "1", "--decode-replicas", "1", "--decode-hardware", "l4")
    out, err = said(
        capsys, "simulate", "--model", "llama-3-8b", "--hardware", "h100", *LITTLE, *pools, "--slo", "tpot=80", "--json"
    )
    result = json.loads(out)
    slow, usual, fast = result["uncertain"]["slow"], result["summary"], result["uncertain"]["fast"]
    assert 1.4 < slow["tpot"]["p50"] / usual["tpot"]["p50"] < 1.6, "1.5 in published runs"
    assert slow["tpot"]["p50"] > 0.08 > usual["tpot"]["p50"]
    assert slow["attainment"] < 0.5 < usual["attainment"] == fast["attainment"] == 1
    expected = slow["ttft"]["mean"] + 39 * slow["tpot"]["mean"]
    assert slow["e2e"]["mean"] == pytest.approx(expected, rel=0.01)
    assert "ms, at the fast and at the slow end of published runs" in " ".join(err.split())


@pytest.mark.wide
def test_precision_and_degree_count(capsys: pytest.CaptureFixture[str]) -> None:
    def tpot(*options: str) -> float:
        out, _ = said(capsys, "simulate", "--model", "llama-3-8b", "--hardware", "h100", *LITTLE, *options, "--json")
        return float(json.loads(out)["summary"]["tpot"]["p50"])

    plain = tpot()
    assert tpot("--weights", "fp8") < 0.9 * plain
    assert tpot("--tensor-parallel", "2") < 0.8 * plain
    assert tpot("--kv", "fp8") < plain


def test_steps_beyond_what_kernels_were_measured_with_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    long = ("--rate", "2", "--requests", "20", "--input-tokens", "7000", "--output-tokens", "40")
    _, err = said(capsys, *LLAMA, *long, "--max-num-batched-tokens", "6000")
    assert "extrapolated" in err and "kernels were measured up to 4,096" in err
    _, err = said(capsys, "simulate", "--model", "llama-3-8b", "--hardware", "l4", *LITTLE)
    assert "data sheet and estimated efficiencies" in err


def test_who_could_never_be_served_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = said(capsys, *LLAMA, *LITTLE, "--num-blocks", "20", code=1)
    assert "No request was answered" in err
    assert "failed       40 in all, the first because: The prompt needs 38 KV blocks" in err


@pytest.mark.wide
def test_a_load_that_only_fast_kernels_would_bear_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    heavy = ("--requests", "300", "--input-tokens", "600", "--output-tokens", "40")
    found = " ".join(said(capsys, *LLAMA, *heavy, "--rate", str(rate))[1] for rate in range(6, 14))
    assert "the slow end of published runs the load is above capacity" in found
    assert "the fast end of published runs the load is within capacity" in found


@pytest.mark.wide
def test_pools_of_different_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    pools = ("--prefill-replicas", "1", "--decode-replicas", "1")
    together, err = said(capsys, *LLAMA, *LITTLE, *pools, "--json")
    assert "328 kB per prompt token at 560 Gbit/s" in err  # 0.7 of the cards of four GPUs, 25 GB/s each
    separate, err = said(
        capsys, *LLAMA, *LITTLE, *pools, "--decode-hardware", "h100", "--decode-tensor-parallel", "4", "--json"
    )
    assert "Step model of the decode pool: h100 × 4" in err
    tpots = [json.loads(out)["summary"]["tpot"]["p50"] for out in (together, separate)]
    assert tpots[1] < 0.8 * tpots[0]
    _, err = said(capsys, *LLAMA, *LITTLE, *pools, "--transfer-gbps", "1")
    assert "at 1 Gbit/s" in err


@pytest.mark.parametrize(
    ("published", "sentence"),
    [("deepseek-v3", "in fp8, 8 bits"), ("gpt-oss-20b", "in mxfp4, 4 bits"), ("qwen3-8b", "")],
)
def test_weights_that_are_published_narrower_than_reckoned_are_reported(
    capsys: pytest.CaptureFixture[str], published: str, sentence: str
) -> None:
    asked = ("simulate", "--model", published, "--hardware", "b200", "--tensor-parallel", "8")
    for weights, note in (("auto", "Weights: computed as"), ("bf16", "computed here in bf16"), ("int4", "")):
        call([*asked, *LITTLE, "--weights", weights])
        err = capsys.readouterr().err
        assert ("Weights: " in err and note in err and sentence in err) == bool(note and sentence)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--hardware", "h100"), "Missing option '--model'"),
        (("--model", "llama-3-8b"), "--hardware (a GPU by its data sheet) and --step-model"),
        (("--model", "llama-3-8b", "--hardware", "h1000"), "--hardware is 'h1000', which is not known. Did you mean"),
        (("--model", "llama-9", "--hardware", "h100"), "The shape of the model 'llama-9' is not known"),
        (("--model", "llama-3-70b", "--hardware", "a100-80"), "takes 141 GB"),
        (
            ("--model", HYBRID, "--hardware", "l40s", "--tensor-parallel", "2"),
            "recurrent states of 256 sequences 20 GB, and activations and reserves 7 GB, which leaves no KV block; "
            "lower --max-num-seqs",
        ),
        ((*LLAMA[1:-1], "3"), "64 query heads, which 3 GPUs cannot share"),
        ((*LLAMA[1:-1], "0"), "--tensor-parallel is 0; give at least 1"),
        ((*LLAMA[1:], "--decode-tensor-parallel", "16"), "but NVLink joins 8 of a100-80"),
        ((*LLAMA[1:], "--noise"), "with --hardware nothing was measured"),
        (
            (*LLAMA[1:], "--decode-hardware", "h100", "--decode-tensor-parallel", "4"),
            "is about pools for prefill and decode",
        ),
        ((*LLAMA[1:], "--kv-bytes", "8"), "--kv-bytes is about --step-model"),
        ((*LLAMA[1:], "--max-num-seqs", "0"), "--max-num-seqs is 0"),
        ((*LLAMA[1:], "--block-size", "0"), "--block-size is 0"),
        ((*LLAMA[1:], "--max-model-len", "0"), "--max-model-len is 0"),
    ],
)
def test_what_no_gpu_can_be_is_refused(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], sentence: str
) -> None:
    assert call(["simulate", *options, *LITTLE]) != 0
    assert sentence in capsys.readouterr().err


def test_what_only_a_gpu_has_is_refused_beside_a_step_model(capsys: pytest.CaptureFixture[str], model: str) -> None:
    for option in (("--model", "llama-3-8b"), ("--decode-hardware", "h100"), ("--tensor-parallel", "2")):
        _, err = said(capsys, "simulate", "--step-model", model, *LITTLE, *option, code=2)
        assert f"{option[0]} is about --hardware and has no effect with --step-model" in err
    _, err = said(capsys, "simulate", "--step-model", model, "--rate", "1", "--decode-step-model", model, code=2)
    assert "--decode-step-model is about pools for prefill" in err


def test_a_model_without_its_engine_asks_for_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    MODEL.save(tmp_path / "bare.json")
    _, err = said(capsys, "simulate", "--step-model", str(tmp_path / "bare.json"), "--rate", "1", code=2)
    assert "give --num-blocks" in err


def test_what_is_simulated_ends_steps_early_where_the_engine_does(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A GPU's steps are filled, and those of another engine's result, too."""
    record = tmp_path / "r.jsonl"

    def in_force(*arguments: str) -> int:
        said(capsys, "simulate", *arguments, "--rate", "6", "--requests", "20", "--record", str(record))
        header = json.loads(record.read_text().splitlines()[0])
        return int(header["settings"]["early_end_tokens"]["value"])

    unknown = json.loads(Path(model).read_text())
    unknown["provenance"]["capacity"] = {}
    theirs = tmp_path / "theirs.json"
    theirs.write_text(json.dumps(unknown))
    assert in_force("--step-model", model) == EARLY_END
    assert in_force("--step-model", model, "--early-end-tokens", "5") == 5
    assert in_force("--model", "llama-3-8b", "--hardware", "h100") == 0
    assert in_force("--step-model", str(theirs), "--num-blocks", "400", "--max-model-len", "4096") == 0


def test_steps_in_flight_are_those_of_the_device(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step model has the device that it was measured on; its record names it, and so does a model fitted on that."""
    record, gpu = str(tmp_path / "r.jsonl"), tmp_path / "gpu.json"
    measured = json.loads(Path(model).read_text())
    measured["provenance"]["settings"] = {"device": "cuda:0", "depth": 2}
    gpu.write_text(json.dumps(measured))

    def described(*arguments: str) -> str:
        return said(capsys, "simulate", *arguments, "--rate", "6", "--requests", "60", "--record", record)[1]

    assert "an engine on cpu with 1 step in flight." in described("--step-model", model)
    assert "an engine on cuda with 2 steps in flight." in described("--model", "llama-3-8b", "--hardware", "h100")
    assert "an engine on cuda:0 with 2 steps in flight." in described("--step-model", str(gpu))
    settings = json.loads(Path(record).read_text().splitlines()[0])["settings"]
    assert (settings["device"]["value"], settings["depth"]["value"]) == ("cuda:0", 2)
    said(capsys, "replay", record)
    own = str(tmp_path / "own.json")
    said(capsys, "calibrate", "--record", record, "--output", own)
    assert "an engine on cuda:0 with 2 steps in flight." in described("--step-model", own)


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


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda lines: [lines[0]], "no step: nothing was computed"),
        (lambda lines: ['{"kind":"step"}'], "starts with kind 'step'"),
        (lambda lines: ["5"], "Line 1 of"),
        (lambda lines: [lines[0], "5"], "Line 2 of"),
        (lambda lines: [lines[0], '{"kind":"step"}'], "Line 2 of"),
        (lambda lines: [lines[0], lines[1].replace('"seconds":', '"seconds":-')], "Line 2 of"),
        (lambda lines: ["\udcff\udcfe\x00binary"], "line 1: not JSON"),
        (lambda lines: [lines[0], lines[1].replace('"step"', '"st\udcffp"')], "line 2: not UTF-8"),
        (lambda lines: [lines[0].replace('"num_blocks":200', '"num_blocks":99999999999')], "num_blocks"),
        (lambda lines: [lines[0], *lines[2:]], "Line|lines are missing|ends at"),
    ],
)
@pytest.mark.parametrize("verb", [("replay",), ("calibrate", "--record")])
def test_what_is_no_record_is_reported_by_file_and_line(  # type: ignore[no-untyped-def]
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path, verb: tuple[str, ...], change, sentence: str
) -> None:
    record = tmp_path / "r.jsonl"
    said(capsys, "simulate", "--step-model", model, "--rate", "6", "--requests", "8", "--record", str(record))
    lines = change(record.read_text().splitlines())
    record.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    if verb[0] == "calibrate" and "missing" in sentence:
        return  # what is fitted needs no whole run
    _, err = said(capsys, *verb, str(record), code=1)
    (result,) = [line for line in err.splitlines() if line.startswith("inflight: ")]
    assert str(record) in result or verb[0] == "calibrate"
    assert re.search(sentence, result) or (verb[0] == "calibrate" and "a fit needs at least" in result), result


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda held: held.update(step=-1.0), "step"),
        (lambda held: held.update(token=[]), "0 coefficients of tokens for 0 knots"),
        (lambda held: held.update(knots=[8, 4], token=[1e-3] * 3), "knots do not rise"),
        (lambda held: held.update(token="x"), "token"),
        (lambda held: held.pop("residuals"), "lacks 'residuals'"),
        (lambda held: held["provenance"]["capacity"].update(num_blocks="many"), "num_blocks"),
        (lambda held: held["provenance"]["capacity"].update(num_blocks=-5), "num_blocks"),
        (lambda held: held["provenance"].update(steps={}), "steps"),
        (lambda held: held["ranges"].update(mood=[0, 1]), "range of 'mood'"),
    ],
)
def test_a_damaged_step_model_is_reported(  # type: ignore[no-untyped-def]
    capsys: pytest.CaptureFixture[str], model: str, change, sentence: str
) -> None:
    held = json.loads(Path(model).read_text())
    change(held)
    Path(model).write_text(json.dumps(held))
    _, err = said(capsys, "simulate", "--step-model", model, "--rate", "2", "--requests", "10", code=1)
    assert sentence in err and "Traceback" not in err


def test_a_changed_record_ends_with_1(capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    said(capsys, "simulate", "--step-model", model, "--rate", "6", "--requests", "20", "--record", str(record))
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    plans = [line["plan"] for line in lines if line["kind"] == "step"]
    plans[9]["chunks"][0]["start"] += 1
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


SPECULATING = ("simulate", "--rate", "2", "--requests", "40", "--json")


def tpot(capsys: pytest.CaptureFixture[str], model: str, *options: str) -> float:
    out, _ = said(capsys, *SPECULATING, "--step-model", model, *options)
    return float(json.loads(out)["summary"]["tpot"]["mean"])


def test_drafts_are_simulated_where_it_is_said_how_often_they_are_right(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    plain = tpot(capsys, model)
    assert tpot(capsys, model, "--speculation", "auto") == plain, "nothing was said of how often they are right"
    record = tmp_path / "drafted.jsonl"
    cheap = ("--max-num-seqs", "1", "--speculation-max-tokens", "4")
    drafted = tpot(capsys, model, "--speculation", "suffix", "--speculation-acceptance", "0.95", *cheap)
    assert drafted < tpot(capsys, model, "--max-num-seqs", "1")
    again = (*cheap, "--speculation", "suffix", "--speculation-acceptance", "0.95", "--record", str(record))
    _, err = said(capsys, *SPECULATING, "--step-model", model, *again)
    assert re.search(
        r"drafts       [\d,]+ in \d\d% of the steps, \d\d% of them accepted; \d\.\d\d tokens a step", err
    ), err
    said(capsys, "replay", str(record), "--step-model", model)
    recorded = tpot(capsys, model, "--speculation", "auto", "--speculation-record", str(record), *cheap)
    assert recorded == pytest.approx(drafted, rel=0.15)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ("--speculation", "off", "--speculation-acceptance", "0.7"),
            "--speculation-acceptance has no effect with --speculation off",
        ),
        (
            ("--speculation", "off", "--speculation-draft-ms", "2"),
            "--speculation-draft-ms has no effect with --speculation off",
        ),
        (
            ("--speculation", "suffix"),
            "A simulation cannot know how often drafts are accepted; give --speculation-accep",
        ),
        (("--speculation", "suffix", "--speculation-acceptance", "1.5"), "--speculation-acceptance is '1.5'; give"),
        (("--speculation", "draft:x", "--speculation-acceptance", "1"), "whose time is not known; give --specul"),
        (
            ("--speculation", "suffix", "--speculation-acceptance", "1", "--speculation-draft-ms", "1"),
            "--speculation suffix looks drafts up, but --speculation-draft-ms, or the record, is of drafts that a",
        ),
        (
            ("--speculation", "heads", "--speculation-acceptance", "1", "--speculation-draft-ms", "-1"),
            "--speculation-draft-ms is -1; give milliseconds, above 0.",
        ),
    ],
)
def test_what_is_said_of_drafts_must_go_together(
    capsys: pytest.CaptureFixture[str], model: str, options: tuple[str, ...], sentence: str
) -> None:
    _, err = said(capsys, "simulate", "--step-model", model, "--rate", "1", "--requests", "5", *options, code=2)
    assert sentence in err


def test_calibrate_measures_no_drafts(capsys: pytest.CaptureFixture[str], bare: Path) -> None:
    _, err = said(capsys, "calibrate", "--model", str(bare), "--speculation", "suffix", code=2)
    assert "--speculation suffix has no effect on what steps are measured with; leave it out." in err


def test_blocks_and_states_of_a_model_with_recurrent_layers_go_to_peers_and_a_folder(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ("simulate", "--model", HYBRID, "--hardware", "h200", "--tensor-parallel", "2", "--rate", "1")
    pools = ("--prefill-replicas", "1", "--decode-replicas", "1")
    _, err = said(capsys, *asked, *pools, "--requests", "8")
    assert re.search(r"looked for [1-9]\d* were fetched, 0 failed", err)
    folder = ("--kv-cache-disk", "9", "--kv-disk-read-gb-per-s", "3", "--kv-disk-write-gb-per-s", "1")
    _, err = said(capsys, *asked, *folder, "--requests", "4", "--turns", "2")
    assert " stored, " in err
