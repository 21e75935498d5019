"""`inflight doctor` where there is a GPU: its rates, and what a model reaches on it."""

from __future__ import annotations

import json

import pytest

from inflight.build import limits
from inflight.execution.backends.torch import rates
from inflight.execution.backends.torch.device import Chosen
from inflight.execution.backends.torch.rates import DeviceRates

from .terminal import Caller

H100 = DeviceRates("NVIDIA H100", 80 << 30, 79 << 30, 3e12, {"bfloat16": 8e14, "float32": 5e13, "int8": 1.4e15})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "choose", lambda asked: Chosen("cuda:0", "a GPU is there: NVIDIA H100"))
    monkeypatch.setattr(rates, "device_rates", lambda device: H100)


@pytest.mark.wide
def test_a_gpus_rates_and_its_roofline_are_told(inflight: Caller, gpu: None) -> None:
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


def test_a_gpu_that_cannot_be_measured_is_a_sentence(
    inflight: Caller, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(device: str) -> DeviceRates:
        raise RuntimeError("CUDA error: out of memory\nand advice")

    monkeypatch.setattr(rates, "device_rates", broken)
    told = inflight("doctor")
    assert told.code != 0 and "cuda:0 cannot be measured (CUDA error: out of memory); --device cpu" in told.err
