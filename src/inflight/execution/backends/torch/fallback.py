"""Kernels of our own, and in the place of one that a GPU does not take, its twin in PyTorch's operations.

Knows names and errors; not what is computed. A kernel is compiled when it is first called, for the GPU that is there,
which may be one that nobody has tried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from triton.errors import TritonError

from inflight.execution.backends.torch.device import first_line

log = logging.getLogger(__name__)


class WithTwins:
    """The operations that `twins` has (its `__all__`), each by its kernel, if there is one."""

    def __init__(self, kernels: ModuleType, twins: ModuleType) -> None:
        for name in twins.__all__:
            kernel, twin = getattr(kernels, name, None), getattr(twins, name)
            setattr(self, name, twin if kernel is None else self._guarded(name, kernel, twin))

    def _guarded(self, name: str, kernel: Callable[..., Any], twin: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            try:
                return kernel(*arguments)
            except (TritonError, RuntimeError) as error:
                if not is_of_compiling(error):
                    raise
                log.warning(
                    "the kernel of %s does not run on this GPU (%s): PyTorch's operations take its place, which is "
                    "slower; a newer driver or Triton may take it",
                    name,
                    first_line(error),
                )
                setattr(self, name, twin)
                return twin(*arguments)

        return call


def is_of_compiling(error: Exception) -> bool:
    """Triton's own errors are; of the compiler below it a RuntimeError comes, by this text."""
    return isinstance(error, TritonError) or "PassManager" in str(error)
