"""`inflight doctor` where there is a GPU: its rates, and what a model reaches on it; and which kernels are compiled."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from inflight.build import limits
from inflight.cli import doctor
from inflight.execution.backends import native
from inflight.execution.backends.native import InstructionSet
from inflight.execution.backends.torch import rates
from inflight.execution.backends.torch.device import Chosen
from inflight.execution.backends.torch.rates import DeviceRates

from .terminal import Caller, CommandResult

H100 = DeviceRates("NVIDIA H100", 80 << 30, 79 << 30, 3e12, {"bfloat16": 8e14, "float32": 5e13, "int8": 1.4e15})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "choose", lambda asked: Chosen("cuda:0", "a GPU is there: NVIDIA H100"))
    monkeypatch.setattr(rates, "device_rates", lambda device: H100)


@pytest.mark.wide
def test_a_gpus_rates_and_its_roofline_are_reported(inflight: Caller, gpu: None) -> None:
    report = json.loads(inflight("doctor", "--json").out)
    assert report["gpu"]["name"] == "NVIDIA H100" and report["gpu"]["read_bytes_per_s"] == 3e12
    model = report["model"]
    assert [one["batch"] for one in model["decode"]] == [1, 32, 256]
    assert model["decode"][0]["step_ms"] >= model["weight_bytes"] / 3e12 * 1e3 * 0.5
    text = inflight("doctor", "--quantization", "int4").out
    assert "GPU             NVIDIA H100, 79.0 GiB free of 80.0 GiB" in text
    assert "reads         3.00 TB/s" in text and "bfloat16 800, float32 50, int8 1,400 TFLOP/s" in text


def test_a_cpu_is_asked_for_by_name(inflight: Caller) -> None:
    report = json.loads(inflight("doctor", "--json", "--device", "cpu").out)
    assert report["gpu"] is None and [one["batch"] for one in report["model"]["decode"]] == [1, 8, 32]


QUANTIZED = {
    **{"model_type": "llama", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
    "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True},
}


def test_a_quantized_model_is_counted_as_it_is_loaded(inflight: Caller, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QUANTIZED))
    given = ["doctor", "--json", "--device", "cpu", "--model", str(tmp_path)]
    came, plain = (json.loads(inflight(*given, *more).out)["model"] for more in ([], ["--load-format", "dequantize"]))
    assert came["weight_format"] is not None and plain["weight_format"] is None
    norms = 4 * 5 * 64  # in float32
    assert plain["weight_bytes"] == 2 * (plain["parameters"] - 5 * 64) + norms > 1.5 * came["weight_bytes"]


def test_a_plain_model_is_not_dequantized(inflight: Caller) -> None:
    result = inflight("doctor", "--device", "cpu", "--load-format", "dequantize").sentence()
    assert "--load-format dequantize is for quantized matrices, and those of this one are plain" in result


def test_a_gpu_that_cannot_be_measured_is_a_sentence(
    inflight: Caller, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(device: str) -> DeviceRates:
        raise RuntimeError("CUDA error: out of memory\nand advice")

    monkeypatch.setattr(rates, "device_rates", broken)
    result = inflight("doctor")
    assert result.code != 0 and "cuda:0 cannot be measured (CUDA error: out of memory); --device cpu" in result.err


def lacking(*sets: tuple[str, bool, bool]) -> list[InstructionSet]:
    return [InstructionSet(name, (), runs, compiled) for name, runs, compiled in sets]


def test_a_build_that_lacks_the_best_instruction_set_is_noticed(
    inflight: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = lacking(("widest", True, False), ("narrow", True, True), ("foreign", False, True))
    monkeypatch.setattr(native, "instruction_sets", lambda: sets)
    text = inflight("doctor", "--device", "cpu").out
    assert "kernels         narrow (also here: none)" in text
    assert "also runs widest, which this build lacks: `inflight doctor --kernels all` compiles it" in text
    monkeypatch.setattr(native, "instruction_sets", lambda: lacking(("widest", True, False), ("foreign", False, True)))
    assert "No compiled kernels run on this processor; `inflight doctor --kernels all`" in inflight("doctor").sentence()


def test_all_kernels_are_compiled_in_the_environment_that_lacks_them(
    inflight: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sets = lacking(("widest", True, True), ("foreign", False, False))
    monkeypatch.setattr(native, "instruction_sets", lambda: sets)
    script, environment = tmp_path / "scripts" / "venv", tmp_path / "environment"
    script.parent.mkdir()
    script.write_text('#!/bin/sh\necho "$INFLIGHT_KERNELS $2" >"$1/asked"\nexit "$ENDS"\n')
    script.chmod(0o755)
    environment.mkdir()
    monkeypatch.setattr(doctor.inflight, "__file__", str(tmp_path / "src" / "inflight" / "__init__.py"))
    monkeypatch.setattr("sys.prefix", str(environment))
    assert re.search(
        r"was not set up by .*venv; `\S+ -m pip install --no-deps -e", inflight_doctor(inflight).sentence()
    )

    (environment / "choices").write_text("kernels native\nextras [gpu]\n")
    monkeypatch.setenv("ENDS", "0")
    listed = inflight_doctor(inflight).out.splitlines()
    assert (environment / "asked").read_text() == "all [gpu]\n"
    assert listed == [
        "widest          in use",
        "foreign         not compiled; `inflight doctor --kernels all` does it, and this processor does not run it",
    ]
    monkeypatch.setenv("ENDS", "1")
    assert "not compiled; the lines above say why" in inflight_doctor(inflight).sentence()


def inflight_doctor(inflight: Caller) -> CommandResult:
    return inflight("doctor", "--kernels", "all")
