"""The page on adding an operation: its code runs, and its definition keeps the contract that it states."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.execution.backends.reference import ReferenceBackend
from inflight.execution.program import OPERATIONS

from .backends.material import OnArrays

PAGE = Path(__file__).parents[2] / "docs/add-a-backend-op.md"
Function = Callable[[np.ndarray, float], np.ndarray]


@pytest.fixture
def page() -> Iterator[dict[str, Any]]:
    """Return the names that the page's code defines."""
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(code, names)
    yield names
    del OPERATIONS["clip"]


def on_arrays(backend: Any) -> Function:
    def run(x: np.ndarray, limit: float) -> np.ndarray:
        made = backend.activation_of(x.copy())
        OnArrays(backend)._pass().clip(made, limit)
        return np.asarray(made.array)

    return run


def test_the_operation_of_the_page_keeps_its_contract(page: dict[str, Any]) -> None:
    run = on_arrays(ReferenceBackend("float32"))
    page["check"](lambda x, limit: np.clip(x, -limit, limit), run)


def test_so_does_the_function_that_launches_it(page: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")

    def launched(x: np.ndarray, limit: float) -> np.ndarray:
        tensor = torch.from_numpy(x.copy())
        page["launch_clip"](None, tensor, limit)
        return np.asarray(tensor)

    page["check"](on_arrays(ReferenceBackend("float32")), launched)


def test_a_kernel_that_looks_at_its_neighbours_is_found_out(page: dict[str, Any]) -> None:
    run = on_arrays(ReferenceBackend("float32"))
    with pytest.raises(AssertionError):
        page["check"](run, lambda x, limit: run(x, limit) + np.float32(1e-6) * len(x))


def test_what_the_page_names_is_there() -> None:
    text = PAGE.read_text()
    for name in re.findall(r"`((?:src|tests|native)/[\w/.-]+?)/?`", text):
        assert (PAGE.parents[1] / name).exists(), name
