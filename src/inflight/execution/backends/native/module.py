"""The compiled module, loaded when it is first asked for. Knows where it is, and what to do where it is not built."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


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


def module() -> Any:
    try:
        return importlib.import_module("inflight.execution.backends._native")
    except ImportError as error:
        raise ImportError(
            "the native kernels are not built: install the package with `pip install .` (needs a C++20 compiler), "
            'or use the slow numpy backend with isa="reference"'
        ) from error


def available_isas() -> list[str]:
    """Instruction sets this build has and this CPU can run, best first."""
    return list(module().available_isas())


def instruction_sets() -> list[InstructionSet]:
    """Return all instruction sets of this architecture, best first."""
    known = module().instruction_sets()
    return [InstructionSet(name, tuple(needs.split()), runs, compiled) for name, needs, runs, compiled in known]
