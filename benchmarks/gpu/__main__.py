"""The command: which parts, of which models, and the section of docs/results.md that they make."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.results import write_section
from benchmarks.shapes import GPU_SHAPES, TINY

if TYPE_CHECKING:
    from benchmarks.gpu.device import MeasuredDevice
    from benchmarks.gpu.model import DrawnModel, Limits
    from inflight.execution.backends.torch.operations import DeviceOperations

PARTS = ("kernels", "start", "decode", "prefill", "mixed", "invariance", "gaps")
_TINY = {**TINY, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "vocab_size": 300}
_POSITIONS = 8192 + 64
_KV_TOKENS = 256 * 1280


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. seconds: of arrivals in the mixed load."""

    rows: Sequence[int]
    context: int
    steps: int
    prompts: Sequence[int]
    seconds: float
    shares: Sequence[float]
    prompt: int  # tokens of the prompt whose company changes

    @property
    def most_rows(self) -> int:
        return max(self.rows)


_FULL = Scale((1, 8, 32, 128, 256), 1024, 48, (512, 2048, 8192), 15.0, (0.5, 0.8), 300)
_LITTLE = Scale((1, 3), 20, 2, (24,), 0.5, (0.5,), 12)


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _parser().parse_args(arguments)
    if asked.device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported
    from benchmarks.gpu.device import MeasuredDevice

    device = MeasuredDevice(asked.device)
    parts = PARTS if asked.part == "all" else (asked.part,)
    sections = [device.told()]
    if "kernels" in parts:
        sections.append(f"### Kernels beside PyTorch's own operations\n\n{_kernels(device)}")
    of_models = [part for part in parts if part != "kernels"]
    for name in asked.models.split(",") if of_models and device.is_gpu else ["tiny"] if of_models else []:
        sections += _of_model(device, name, of_models, asked)
    body = "\n\n".join(sections)
    print(body)
    if asked.write:
        subject = device.name.partition(" (")[0]
        command = (
            f"python -m benchmarks.gpu --part {asked.part} --models {asked.models} --quantization {asked.quantization}"
        )
        write_section(
            f"gpu {subject} {asked.part} {asked.quantization}", f"On a GPU: {subject}, {asked.part}", command, body
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--models", default=",".join(GPU_SHAPES), help="names with commas between; shapes alone")
    parser.add_argument("--quantization", choices=("none", "int8", "int4"), default="none", help="of layers' matrices")
    parser.add_argument(
        "--device", default="cuda", help="cuda, cuda:1 …; cpu: a tiny model, to see that all of it runs"
    )
    parser.add_argument("--plain", action="store_true", help="PyTorch's own operations in the place of kernels")
    parser.add_argument("--enforce-eager", action="store_true", help="launch each operation: no graphs")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    return parser


def _kernels(device: MeasuredDevice) -> str:
    from benchmarks.gpu.kernels import compare, told
    from inflight.execution.backends.torch import eager, kernels

    return told(compare(device, kernels, eager))


def _operations(device: MeasuredDevice, plain: bool) -> DeviceOperations:
    """On a CPU PyTorch's own: a model's steps would take the interpreter minutes."""
    from inflight.execution.backends.torch import eager, kernels

    return kernels if device.is_gpu and not plain else eager


def _of_model(device: MeasuredDevice, name: str, parts: Sequence[str], asked: argparse.Namespace) -> list[str]:
    from benchmarks.gpu.model import DrawnModel

    scale, started = _FULL if device.is_gpu else _LITTLE, time.perf_counter()
    shape = GPU_SHAPES[name] if device.is_gpu else _TINY
    model = DrawnModel(
        device, _operations(device, asked.plain), shape, _limits(scale), asked.quantization, asked.enforce_eager
    )
    device.wait()
    measured = _measurements(device, model, scale, time.perf_counter() - started)
    held = "bf16" if asked.quantization == "none" else asked.quantization
    found = [f"### {name}'s shape in {held}"]
    for part in parts:
        title, run = measured[part]
        found.append(f"{title}\n\n{run()}")
    return found


def _limits(scale: Scale) -> Limits:
    from benchmarks.gpu.model import Limits

    if scale is _LITTLE:
        return Limits(scale.most_rows, 128, 64, 1024)
    return Limits(scale.most_rows, _POSITIONS, max(scale.prompts), _KV_TOKENS)


def _measurements(
    device: MeasuredDevice, model: DrawnModel, scale: Scale, load_seconds: float
) -> dict[str, tuple[str, Callable[[], str]]]:
    """By part: its title, and what makes its text."""
    from benchmarks.gpu import gaps, invariance, mixed, throughput

    ends = scale.rows[0], scale.rows[-1]
    return {
        "start": ("#### Start", lambda: throughput.starting(model, scale.context, load_seconds)),
        "decode": (
            "#### Decoding",
            lambda: throughput.decoding(device, model, scale.rows, scale.context, scale.steps),
        ),
        "prefill": ("#### Prompts", lambda: throughput.prompts(device, model, scale.prompts)),
        "mixed": ("#### Requests as they come", lambda: mixed.served(model, scale.seconds, scale.shares)),
        "invariance": (
            "#### The same row in other company",
            lambda: invariance.sameness(model, scale.rows, scale.prompt, scale.steps),
        ),
        "gaps": (
            "#### Between steps",
            lambda: gaps.between_steps(model, ends, scale.context, scale.steps),
        ),
    }


if __name__ == "__main__":
    main()
