"""The command: which parts, of which models, and the section of docs/results.md that they make."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.results import write_section
from benchmarks.shapes import GPU_SHAPES, TINY

if TYPE_CHECKING:
    from benchmarks.gpu.device import MeasuredDevice
    from benchmarks.gpu.model import DrawnModel, Limits
    from inflight.execution.backends.torch.launcher import Launcher

PARTS = ("kernels", "start", "decode", "prefill", "drafts", "speculation", "mixed", "invariance", "gaps", "by-kernel")
_TINY = {**TINY, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "vocab_size": 2048}
_POSITIONS = 8192 + 64
_KV_TOKENS = 256 * 1280


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. drafts: of each row. legs: of a contest, each of so many tokens a row. seconds: of arrivals
    in the mixed load."""

    rows: Sequence[int]
    context: int
    steps: int
    prompts: Sequence[int]
    drafts: Sequence[int]
    legs: int
    leg_tokens: int
    seconds: float
    shares: Sequence[float]
    prompt: int  # tokens of the prompt whose company changes

    @property
    def usual_prompt(self) -> int:
        """Return the sizes whose kernels are reported one by one."""
        return self.prompts[-2:][0]

    @property
    def max_rows(self) -> int:
        return max(self.rows)


_FULL = Scale((1, 8, 32, 128, 256), 1024, 48, (64, 200, 512, 2048, 8192), (1, 3, 7, 15), 20, 128, 15.0, (0.5, 0.8), 300)
_LITTLE = Scale((1, 3), 20, 2, (24,), (1, 3), 1, 4, 0.5, (0.5,), 12)


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _parser().parse_args(arguments)
    if asked.device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported
    from benchmarks.gpu.device import MeasuredDevice

    device, sections = MeasuredDevice(asked.device), []
    for section in _sections(device, asked):
        print(section, end="\n\n", flush=True)
        sections.append(section)
    if asked.write:
        subject = f"{device.name.partition(' (')[0]}, {asked.part}, {_held(asked)}"
        command = " ".join(["python -m benchmarks.gpu", *(sys.argv[1:] if arguments is None else arguments)])
        write_section(f"gpu {subject}", f"On a GPU: {subject}", command, "\n\n".join(sections))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--cases", default="", help="part kernels: of those whose names have this regular expression")
    parser.add_argument("--models", nargs="+", choices=list(GPU_SHAPES), default=list(GPU_SHAPES), help="their shapes")
    parser.add_argument(
        "--quantization", choices=("none", "int8", "int4", "fp8"), default="none", help="of layers' matrices"
    )
    parser.add_argument(
        "--device", default="cuda", help="cuda, cuda:1 …; cpu: a tiny model, to see that all of it runs"
    )
    parser.add_argument("--batch-invariant", action="store_true", help="forms whose bits do not depend on the batch")
    parser.add_argument("--enforce-eager", action="store_true", help="launch each operation: no graphs")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    return parser


def _sections(device: MeasuredDevice, asked: argparse.Namespace) -> Iterator[str]:
    """One after the other, as they are measured."""
    yield device.summary()
    parts = PARTS if asked.part == "all" else (asked.part,)
    if "kernels" in parts:
        yield f"### Kernels beside the definitions\n\n{_kernels(device, asked.cases)}"
    of_models = [part for part in parts if part != "kernels"]
    names = asked.models if device.is_gpu else ["tiny"]
    for name in names if of_models else []:
        yield from _of_model(device, name, of_models, asked)


def _held(asked: argparse.Namespace) -> str:
    """How the measured models are held and computed."""
    held = "bf16" if asked.quantization == "none" else str(asked.quantization)
    ways = {"batch-invariant": asked.batch_invariant, "without graphs": asked.enforce_eager}
    return ", ".join([held, *(name for name, is_so in ways.items() if is_so)])


def _kernels(device: MeasuredDevice, named: str) -> str:
    from benchmarks.gpu.kernels import compare, comparison

    if not device.is_gpu:
        from tests.execution.backends.torch.interpreted import mend_interpreter

        mend_interpreter()
    return comparison(compare(device, named))


def _launcher(device: MeasuredDevice) -> Launcher:
    """Return an engine's. On a CPU it runs the definitions: kernels would take the interpreter minutes."""
    from inflight.execution.backends.torch.definitions import Definitions
    from inflight.execution.backends.torch.launcher import KernelLauncher

    return KernelLauncher() if device.is_gpu else Definitions()


def _of_model(device: MeasuredDevice, name: str, parts: Sequence[str], asked: argparse.Namespace) -> Iterator[str]:
    from benchmarks.gpu.model import DrawnModel
    from inflight.execution.backends.torch.opening import CudaGraphs

    device.forget()
    scale, started = _FULL if device.is_gpu else _LITTLE, time.perf_counter()
    shape = GPU_SHAPES[name] if device.is_gpu else _TINY
    graphs = CudaGraphs(device.device) if device.is_gpu and not asked.enforce_eager else None

    def drawn(shape: dict[str, object]) -> DrawnModel:
        return DrawnModel(
            device, _launcher(device), shape, _limits(scale), asked.quantization, graphs, asked.batch_invariant
        )

    model = drawn(shape)
    device.wait()
    measured = _measurements(device, model, scale, time.perf_counter() - started)
    measured["speculation"] = "Speculation against none", lambda: _contest(drawn, shape, scale, device.is_gpu)
    yield f"### {name}'s shape in {_held(asked)}"
    for part in parts:
        title, run = measured[part]
        yield f"#### {title}\n\n{_text(run)}"


def _text(run: Callable[[], str]) -> str:
    """A part that breaks must not take the others' figures along."""
    try:
        return run()
    except Exception as error:
        traceback.print_exc()
        return f"This could not be measured: {type(error).__name__}: {error}"


def _limits(scale: Scale) -> Limits:
    from benchmarks.gpu.model import Limits

    if scale is _LITTLE:
        return Limits(scale.max_rows, 1024, 64, 1024)
    return Limits(scale.max_rows, _POSITIONS, max(scale.prompts), _KV_TOKENS)


def _measurements(
    device: MeasuredDevice, model: DrawnModel, scale: Scale, load_seconds: float
) -> dict[str, tuple[str, Callable[[], str]]]:
    """By part: its title, and what makes its text."""
    from benchmarks.gpu import by_kernel, gaps, invariance, mixed, throughput

    ends = scale.rows[0], scale.rows[-1]
    return {
        "start": ("Start", lambda: throughput.starting(model, scale.context, load_seconds)),
        "decode": (
            "Decoding",
            lambda: throughput.decoding(device, model, scale.rows, scale.context, scale.steps),
        ),
        "prefill": ("Prompts", lambda: throughput.prompts(device, model, scale.prompts)),
        "drafts": (
            "Steps with drafts",
            lambda: throughput.verifying(model, scale.rows[:-1], scale.drafts, scale.context, scale.steps),
        ),
        "mixed": ("Requests as they come", lambda: mixed.served(model, scale.seconds, scale.shares)),
        "invariance": (
            "The same row in other company",
            lambda: invariance.sameness(model, scale.rows, scale.prompt, scale.steps),
        ),
        "gaps": (
            "Between steps",
            lambda: gaps.between_steps(model, ends, scale.context, scale.steps),
        ),
        "by-kernel": (
            "Where the time goes",
            lambda: by_kernel.by_kernel(model, scale.rows, scale.context, scale.steps, scale.usual_prompt),
        ),
    }


def _contest(
    drawn: Callable[[dict[str, object]], DrawnModel], shape: dict[str, object], scale: Scale, is_gpu: bool
) -> str:
    """The only part that asks for more of this project than a step does; and for a vocabulary of its texts."""
    from benchmarks.gpu.speculation import contest

    model = drawn({**shape, "vocab_size": 2048})
    return contest(model, (1, 4, 16, 64) if is_gpu else scale.rows, scale.legs, scale.leg_tokens)


if __name__ == "__main__":
    main()
