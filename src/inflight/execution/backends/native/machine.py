"""The instruction sets that the compiled module has kernels for, and what this machine can do at most by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inflight.compiled import module
from inflight.execution.backends.native.backend import NativeBackend


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """Instructions that kernels are compiled for.

    Attributes:
        name: As `open_backend` takes it.
        needs: Features of the CPU, by the compiler's names.
        runs: Whether this machine has them.
        compiled: Whether this build has the kernels.
    """

    name: str
    needs: tuple[str, ...]
    runs: bool
    compiled: bool


def available_isas() -> list[str]:
    """Instruction sets this build has and this CPU can run, best first."""
    return list(module().available_isas())


def instruction_sets() -> list[InstructionSet]:
    """Return all instruction sets of this architecture, best first."""
    known = module().instruction_sets()
    return [InstructionSet(name, tuple(needs.split()), runs, compiled) for name, needs, runs, compiled in known]


def read_bandwidth_bytes_per_s(threads: int, isa: str = "auto") -> float:
    """Measured read bandwidth of `threads` threads."""
    return NativeBackend("float32", threads, isa).read_bandwidth_bytes_per_s()


def peak_flops(kind: Literal["bf16", "f32", "int8"], threads: int, isa: str = "auto") -> float:
    """Measured peak of multiply-adds, two operations each, of `threads` threads."""
    return NativeBackend("float32", threads, isa).peak_flops(kind)
