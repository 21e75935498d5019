"""The compiled module, loaded when it is first asked for. Knows where it is, and what to do where it is not built."""

from __future__ import annotations

import importlib
from typing import Any


def module() -> Any:
    """Return the compiled module. Raises ImportError, with what to do."""
    try:
        return importlib.import_module("inflight.execution.backends._native")
    except ImportError as error:
        raise ImportError(
            "the native kernels are not built: install the package with `pip install .` (needs a C++20 compiler), "
            'or use the slow numpy backend with isa="reference"'
        ) from error
