"""The instruction sets that the compiled module has kernels for."""

from __future__ import annotations

from dataclasses import dataclass

from inflight.compiled import module


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
