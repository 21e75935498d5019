"""The compiled module, loaded when it is first asked for. Knows where it is, and what to do where it is not built."""

from __future__ import annotations

import importlib
from typing import Any


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
