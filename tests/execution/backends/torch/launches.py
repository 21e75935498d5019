"""Which kernels a launcher would launch, and how: noted instead of run.

Knows arguments as Triton specializes them; nothing of compiling.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import triton
import triton.language as tl
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import BaseBackend
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction


@dataclass(frozen=True)
class Argument:
    """As Triton specializes it: its type, and "D" where a pointer or whole number is divisible by 16. Of type
    "constexpr": a value; or the name of a number format, or module and name of a kernel."""

    type: str
    divisible: str | None = None
    value: bool | int | float | str | None = None
    format: str | None = None
    kernel: tuple[str, str] | None = None


@dataclass(frozen=True)
class Launch:
    """A kernel as a launcher called it. options: num_warps and the like."""

    module: str
    name: str
    arguments: dict[str, Argument]
    options: dict[str, bool | int | str]
    grid: tuple[int, ...]


def launches(call: Callable[[], object]) -> list[Launch]:
    """The kernels that `call` launches, none of which runs."""
    with _noted() as found:
        call()
    return found


@contextmanager
def _noted() -> Iterator[list[Launch]]:
    found: list[Launch] = []

    def note(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        parameters = inspect.signature(self.fn).parameters
        given = inspect.signature(self.fn).bind(*args, **{k: v for k, v in kwargs.items() if k in parameters})
        given.apply_defaults()
        general = _general(self)
        arguments = {n: _argument(parameters[n], value, n not in general) for n, value in given.arguments.items()}
        options = {name: value for name, value in kwargs.items() if name not in parameters}
        sizes = grid(given.arguments) if callable(grid) else grid
        found.append(Launch(self.fn.__module__, self.fn.__name__, arguments, options, tuple(sizes)))

    with patch.object(InterpretedFunction if triton.knobs.runtime.interpret else JITFunction, "run", note):
        yield found


def _general(kernel: Any) -> set[str]:
    """Parameters for whose values the kernel is never specialized."""
    if isinstance(kernel, JITFunction):
        return {parameter.name for parameter in kernel.params if parameter.do_not_specialize}
    return set(kernel.kwargs["do_not_specialize"] or ())


def _argument(parameter: inspect.Parameter, value: Any, specialized: bool) -> Argument:
    if "constexpr" not in str(parameter.annotation):
        kind, found = native_specialize_impl(BaseBackend, value, False, specialized, specialized)
        return Argument(kind, value=found) if kind == "constexpr" else Argument(kind, found)
    value = getattr(value, "value", value)
    if isinstance(value, tl.dtype):
        return Argument("constexpr", format=value.name)
    if hasattr(value, "fn"):
        return Argument("constexpr", kernel=(value.fn.__module__, value.fn.__name__))
    return Argument("constexpr", value=value)
