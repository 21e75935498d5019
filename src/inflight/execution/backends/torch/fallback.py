"""Kernels of our own with a fallback: where a GPU does not take one, its reference in PyTorch's operations.

Knows names and errors; not what is computed. A kernel is compiled when it is first called, for the GPU that is there,
which may be a model of GPU that was never tested.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from triton.errors import TritonError

from inflight.execution.backends.torch.device import first_line

log = logging.getLogger(__name__)


class WithFallback:
    """The operations of `references` (its `__all__`), each by its kernel, if there is one."""

    def __init__(self, kernels: ModuleType, references: ModuleType) -> None:
        for name in references.__all__:
            kernel, reference = getattr(kernels, name, None), getattr(references, name)
            setattr(self, name, reference if kernel is None else self._guarded(name, kernel, reference))

    def _guarded(self, name: str, kernel: Callable[..., Any], reference: Callable[..., Any]) -> Callable[..., Any]:
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
                setattr(self, name, reference)
                return reference(*arguments)

        return call


def is_of_compiling(error: Exception) -> bool:
    """Triton's own errors are; of the compiler below it a RuntimeError comes, by this text."""
    return isinstance(error, TritonError) or "PassManager" in str(error)
