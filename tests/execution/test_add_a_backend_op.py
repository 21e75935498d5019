"""The page on adding an operation: its code runs, and its reference and kernel keep the contract that it states."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .backends.material import OnArrays
from .driver import backends

PAGE = Path(__file__).parents[2] / "docs/add-a-backend-op.md"
Operation = Callable[[np.ndarray, float], np.ndarray]


def page() -> dict[str, Any]:
    """Return the names that the page's code defines."""
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(code, names)
    return names


def on_arrays(backend: Any) -> Operation:
    def run(x: np.ndarray, limit: float) -> np.ndarray:
        held = backend.activation_of(x.copy())
        OnArrays(backend)._pass().clip(held, limit)
        return np.asarray(held.array)

    return run


@pytest.mark.skipif(backends() == ["reference"], reason="the kernels are not built")
@pytest.mark.parametrize("threads", [1, 2])
def test_the_operations_of_the_page_keep_their_contract(threads: int) -> None:
    names = page()
    reference, native = names["ClippedReference"]("float32"), names["ClippedNative"]("float32", threads)
    names["check"](on_arrays(reference), on_arrays(native))


@pytest.mark.skipif(backends() == ["reference"], reason="the kernels are not built")
def test_a_kernel_that_looks_at_its_neighbours_is_found_out() -> None:
    names = page()
    reference = on_arrays(names["ClippedReference"]("float32"))
    with pytest.raises(AssertionError):
        names["check"](reference, lambda x, limit: reference(x, limit) + np.float32(1e-6) * len(x))


def test_what_the_page_names_is_there() -> None:
    text = PAGE.read_text()
    for name in re.findall(r"`((?:src|tests|native)/[\w/.-]+?)/?`", text):
        assert (PAGE.parents[1] / name).exists(), name
