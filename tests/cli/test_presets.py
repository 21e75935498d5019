"""`--preset`: values of what computes, whatever the order of options; what is given besides wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from inflight.build import limits
from inflight.cli.machines import hardware_options
from inflight.cli.options import engine_options, scheduling_options
from inflight.cli.verb import Verb
from inflight.config.presets import PRESETS
from inflight.config.setting import SettingsError
from inflight.execution.backends.torch.device import Chosen, DeviceError


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "choose", lambda asked: Chosen("cpu" if asked == "cpu" else "cuda:0", "for a test"))


def parsed(*arguments: str, simulated: bool = False) -> tuple[dict[str, Any], str]:
    """The arguments of a verb, and what was printed."""
    found: dict[str, Any] = {}

    @(hardware_options if simulated else engine_options)
    @scheduling_options
    def verb(**values: Any) -> None:
        found.update(values)

    if simulated:
        verb = click.option("--max-num-seqs", type=int)(click.option("--max-num-batched-tokens", type=int)(verb))
    result = CliRunner().invoke(click.command(cls=Verb)(verb), list(arguments), catch_exceptions=False)
    return found, result.output


@pytest.mark.parametrize("arguments", [["--preset", "throughput"], ["--preset", "throughput", "--device", "cuda"]])
def test_a_gpu_has_larger_steps(gpu: None, arguments: list[str]) -> None:
    values, result = parsed(*arguments)
    assert (values["max_num_seqs"], values["max_num_batched_tokens"]) == (256, 4352)
    assert result.count("--max-num-seqs 256: the largest CUDA graph of decodes") == 1


def test_the_cpu_keeps_its_own(gpu: None, tmp_path: Path) -> None:
    file = tmp_path / "here.toml"
    file.write_text('device = "cpu"\nmax-num-seqs = 7\n')
    values, _ = parsed("--preset", "throughput", "--config", str(file))
    assert (values["max_num_seqs"], values["max_num_batched_tokens"]) == (7, 320)


@pytest.mark.parametrize("name", PRESETS)
def test_a_simulated_gpu_has_a_gpus(name: str) -> None:
    values, _ = parsed("--preset", name, "--hardware", "h100", "--model", "llama-3-8b", simulated=True)
    assert values["max_num_seqs"] == PRESETS[name].gpu["max-num-seqs"][0]


def test_a_device_that_is_not_there_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(asked: str) -> Chosen:
        raise DeviceError("--device cuda needs PyTorch, which is not here.")

    monkeypatch.setattr(limits, "choose", choose)
    with pytest.raises(SettingsError, match="--device cuda needs PyTorch"):
        parsed("--preset", "latency", "--device", "cuda")
