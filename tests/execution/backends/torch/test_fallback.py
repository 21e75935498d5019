"""Kernels with references to fall back to."""

from __future__ import annotations

import logging
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")
from triton.errors import TritonError

from inflight.execution.backends.torch import eager, kernels
from inflight.execution.backends.torch.fallback import WithFallback


def made(**kernels_of: Any) -> tuple[Any, list[str]]:
    """Two operations, one without a kernel if none is given; and what their references were asked for."""
    asked: list[str] = []
    references: Any = SimpleNamespace(
        __all__=["add", "scale"],
        add=lambda *given: asked.append(f"add {given}"),
        scale=lambda *given: asked.append(f"scale {given}"),
    )
    return WithFallback(SimpleNamespace(**kernels_of), references), asked  # type: ignore[arg-type]


def test_an_operation_without_a_kernel_is_its_reference() -> None:
    done: list[int] = []
    operations, asked = made(add=done.append)
    operations.add(3)
    operations.scale(4)
    assert done == [3] and asked == ["scale (4,)"]


@pytest.mark.parametrize("error", [TritonError("too many\nregisters"), RuntimeError("PassManager::run failed")])
def test_a_kernel_that_does_not_compile_is_reported_once(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    tried: list[int] = []

    def add(value: int) -> None:
        tried.append(value)
        raise error

    operations, asked = made(add=add)
    with caplog.at_level(logging.WARNING):
        operations.add(1)
        operations.add(2)
    assert tried == [1] and asked == ["add (1,)", "add (2,)"]
    (warning,) = caplog.messages
    assert "the kernel of add does not run on this GPU" in warning and str(error).splitlines()[0] in warning


def test_what_breaks_otherwise_is_not_hidden() -> None:
    def add() -> None:
        raise RuntimeError("CUDA error: out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        made(add=add)[0].add()


def test_every_operation_has_a_kernel() -> None:
    for module in (eager, kernels):
        assert isinstance(module, ModuleType)
    assert set(kernels.__all__) == set(eager.__all__)
