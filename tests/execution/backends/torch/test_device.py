"""Which device is chosen, why, and what is said where one is not to be had."""

from __future__ import annotations

import builtins
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inflight.build import build_engine
from inflight.config.engine import EngineSettings
from inflight.config.setting import Resolved, SettingsError
from inflight.execution.backends.torch.device import DeviceError, choose, has_fp8


@pytest.fixture
def driven(tmp_path: Path) -> Path:
    """The root of a file system with a driver."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    return tmp_path


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(name="NVIDIA H100", total_memory=80 * 2**30, major=9, minor=0)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: found)


@pytest.fixture(autouse=True)
def no_kernels_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INFLIGHT_ISA", raising=False)


def test_without_a_driver_pytorch_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "__import__", _without("torch"))
    assert choose("auto", tmp_path) == ("cpu", "no NVIDIA or AMD driver found")
    assert choose("cpu", tmp_path) == ("cpu", "as set")


def test_a_gpu_that_is_there_is_taken(driven: Path, two_gpus: None) -> None:
    assert choose("auto", driven) == ("cuda:0", "a GPU is there: NVIDIA H100, 80 GiB, sm_90")
    assert choose("cuda", driven) == ("cuda:0", "as set: NVIDIA H100, 80 GiB, sm_90")
    assert choose("cuda:1", driven).name == "cuda:1"


def test_kernels_that_are_named_are_the_cpus(driven: Path, two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT_ISA", "reference")
    assert choose("auto", driven).name == "cpu" and choose("cuda", driven).name == "cuda:0"


def test_devices_that_are_hidden_are_reported(tmp_path: Path, two_gpus: None) -> None:
    """As a systemd unit with PrivateDevices=yes has them."""
    loaded = tmp_path / "proc/driver/nvidia/version"
    loaded.parent.mkdir(parents=True)
    loaded.touch()
    name, reason = choose("auto", tmp_path)
    assert name == "cpu" and "/dev/nvidiactl is not there" in reason and "PrivateDevices=no" in reason
    with pytest.raises(DeviceError, match="/dev/nvidiactl is not there"):
        choose("cuda", tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert choose("auto", tmp_path).name == "cuda:0"


def test_a_number_that_no_gpu_has_is_reported(driven: Path, two_gpus: None) -> None:
    with pytest.raises(DeviceError, match="--device cuda:2 is not there: PyTorch sees 2 GPUs, numbered from 0"):
        choose("cuda:2", driven)


def test_without_pytorch_it_is_said_how_to_get_it(driven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "__import__", _without("torch"))
    with pytest.raises(DeviceError, match=r"pip install 'inflight-llm\[gpu\]'"):
        choose("cuda", driven)
    name, reason = choose("auto", driven)
    assert name == "cpu" and "pip install 'inflight-llm[gpu]'" in reason


def test_a_pytorch_for_cpus_is_reported(driven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(DeviceError, match="needs a PyTorch with CUDA"):
        choose("cuda:0", driven)


def test_a_gpu_of_amds_is_taken_and_said_to_be_untried(
    driven: Path, two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ROCm's PyTorch has the names of CUDA's. Its floats of 8 bits are not the same everywhere."""
    (driven / "dev/nvidiactl").rename(driven / "dev/kfd")
    found = SimpleNamespace(name="MI300X", total_memory=192 * 2**30, major=9, minor=4, gcnArchName="gfx942")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: found)
    name, reason = choose("auto", driven)
    assert name == "cuda:0" and reason.endswith("MI300X, 192 GiB, gfx942, by ROCm, on which this was never tried")
    assert not has_fp8("cuda:0")


def test_without_a_compiler_of_kernels_the_cpu_computes(
    driven: Path, two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DeviceError, match="needs Triton"):
        choose("cuda", driven)
    name, reason = choose("auto", driven)
    assert name == "cpu" and "needs Triton" in reason


def test_a_gpu_that_pytorch_cannot_use_is_reported(driven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="nvidia-smi"):
        choose("cuda", driven)


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "", "mps"])
def test_settings_know_the_names(device: str) -> None:
    with pytest.raises(SettingsError, match="known are auto, cpu, cuda and cuda:N"):
        EngineSettings(device=device)


def test_transformers_computes_on_a_gpu_that_is_there(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    settings = EngineSettings(model=str(tiny), backend="transformers", device="cuda", gpu_memory_utilization=0.5)
    with pytest.raises(SettingsError, match="needs a PyTorch with CUDA"):
        build_engine(settings)


def test_an_engine_says_what_computes(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT_ISA", "torch")
    settings = build_engine(EngineSettings(model=str(tiny))).settings
    assert settings["device"] == Resolved("cpu", "INFLIGHT_ISA names what computes on it")
    assert str(settings["kernels"].value).endswith("on cpu")
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(SettingsError, match="needs a PyTorch with CUDA"):
        build_engine(EngineSettings(model=str(tiny), device="cuda"))


def _without(missing: str) -> Any:
    there = builtins.__import__

    def imported(name: str, *given: Any, **named: Any) -> Any:
        if name == missing:
            raise ImportError(f"No module named {missing!r}")
        return there(name, *given, **named)

    return imported
