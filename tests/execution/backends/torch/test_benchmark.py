"""The benchmark of the backend on a GPU runs here too, on a tiny model: what it writes of each part has figures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from breadth import first_of

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.ceiling import StepShape, step_costs, step_seconds
from benchmarks.gpu.device import Rates, numbered
from benchmarks.gpu.gaps import Span, merged
from benchmarks.shapes import GPU_SHAPES, write_config
from inflight.execution.sizes import context_bytes, step_weight_bytes
from inflight.models.arithmetic import parameters
from inflight.models.registry import read_folder
from inflight.models.spec import ModelSpec


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    main(["--device", "cpu", *arguments])
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("part", "sentence"),
    first_of(
        [
            ("drafts", "| rows at 20 tokens of context | no drafts, ms | 1 drafts each | 3 drafts each |"),
            ("start", "No graph is captured."),
            ("decode", "rows at 20 tokens of context"),
            ("prefill", "| 24 |"),
            ("speculation", "| repeating | 1 |"),
            ("mixed", "TTFT p50"),
            ("invariance", "| alone once more | 2 of 2 | 2 of 2 | 0 |"),
            ("gaps", "there is no GPU"),
        ]
    ),
)
def test_each_part_runs_without_a_gpu(capsys: pytest.CaptureFixture[str], part: str, sentence: str) -> None:
    page = ran(capsys, "--part", part)
    assert sentence in page and "tiny's shape in bf16" in page and "could not be measured" not in page


BARE = """
import sys
OURS = {"starlette", "uvicorn", "httptools", "uvloop", "multipart", "aiohttp", "prometheus_client", "click", "rich",
        "tokenizers", "huggingface_hub", "llguidance", "safetensors", "transformers", "gguf", "pytest"}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OURS or name == "inflight.execution.backends._native":
            raise ImportError(f"{name} is not on a bare machine")
sys.meta_path.insert(0, Refuse())
from benchmarks.gpu.__main__ import main
main(["--device", "cpu", "--part", "decode"])
"""


def test_a_bare_machine_is_enough() -> None:
    """PyTorch, Triton, numpy and msgspec."""
    root = Path(__file__).parents[4]
    ran = subprocess.run(
        [sys.executable, "-c", BARE], cwd=root, env={**os.environ, "PYTHONPATH": "src"}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert "rows at 20 tokens of context" in ran.stdout and "could not be measured" not in ran.stdout


@pytest.mark.wide
def test_kernels_are_compared_with_their_reference(capsys: pytest.CaptureFixture[str]) -> None:
    page = ran(capsys, "--part", "kernels")
    assert "31 of 31 kernels compute what the definitions do." in page


def test_a_gpu_without_a_number_is_that_of_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch makes none without a number the current one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    assert numbered(torch.device("cuda")) == torch.device("cuda:2")
    assert numbered(torch.device("cuda:1")) == torch.device("cuda:1")
    assert numbered(torch.device("cpu")) == torch.device("cpu")


@pytest.fixture(params=GPU_SHAPES)
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> ModelSpec:
    return read_folder(write_config(tmp_path / "shape", GPU_SHAPES[request.param]), to_run=True)


def test_shapes_are_those_of_their_names(tmp_path: Path) -> None:
    found = {
        name: parameters(read_folder(write_config(tmp_path / name, shape), to_run=True))
        for name, shape in GPU_SHAPES.items()
    }
    assert {name: round(count / 1e9, 1) for name, count in found.items()} == {
        "llama-3.1-8b": 8.0,
        "qwen3-8b": 8.2,
        "qwen3-30b-a3b": 30.5,
    }


def test_the_ceilings_operations_read_what_a_step_reads(spec: ModelSpec) -> None:
    for rows, context in ((1, 1024), (64, 4096)):
        step = StepShape(rows, 1, context)
        read = sum(cost.count * cost.read for cost in step_costs(spec, step))
        whole = step_weight_bytes(spec, "bfloat16", tokens=rows) + rows * context_bytes(spec, "bfloat16", context)
        assert read == pytest.approx(whole, rel=0.01)  # norms and routers are float32, and not counted there


def test_the_minimum_times_of_operations_add_up(spec: ModelSpec) -> None:
    """One of them may wait for memory, the next for the tensor cores: a step takes no less than either of all."""
    rates, step = Rates(4e12, 8e14), StepShape(256, 1, 1024)
    costs = list(step_costs(spec, step))
    reading = sum(cost.count * cost.read for cost in costs) / rates.read_bytes_per_s
    computing = sum(cost.count * cost.operations for cost in costs) / rates.flops_per_s
    assert max(reading, computing) <= step_seconds(spec, step, rates) <= reading + computing


def test_quantized_layers_are_read_faster_and_all_else_as_before(spec: ModelSpec) -> None:
    step, rates = StepShape(1, 1, 1024), Rates(4e12, 8e14)
    plain, int8, int4 = (step_seconds(spec, step, rates, held) for held in ("none", "int8", "int4"))
    of_weights = plain - step_seconds(spec, step, rates, "int8")
    assert plain > int8 > int4 and int8 - int4 == pytest.approx(of_weights * 4 / 7, rel=0.01)


def test_a_prompt_sees_half_of_all_pairs() -> None:
    assert StepShape(1, 4, 4).pairs == 1 + 2 + 3 + 4
    assert StepShape(3, 1, 10).pairs == 30


def test_kernels_that_overlap_are_one_span() -> None:
    spans = [Span(5, 6), Span(0, 2), Span(1, 3), Span(3, 4)]
    assert merged(spans) == [Span(0, 4), Span(5, 6)]
