"""Operations whose bits for a row do not depend on how many rows there are.

Knows that some have a form of which that holds (`invariant` among their parameters), which is slower where rows are
few or cuBLAS would be faster; of the others it holds anyway. None has a fallback: what PyTorch computes in
its place would be cuBLAS's, which adds up in another order for another number of rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from inflight.execution.backends.torch.device import first_line
from inflight.execution.backends.torch.fallback import is_of_compiling


class InvariantOperations:
    """The operations of a module (its `__all__`). A call raises RuntimeError where this GPU does not take the
    kernel."""

    def __init__(self, operations: ModuleType) -> None:
        for name in operations.__all__:
            operation = getattr(operations, name)
            has_form = "invariant" in inspect.signature(operation).parameters
            setattr(self, name, _alone(name, partial(operation, invariant=True) if has_form else operation))


def _alone(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        try:
            return kernel(*arguments)
        except Exception as error:
            if not is_of_compiling(error):
                raise
            raise RuntimeError(
                f"The kernel of {name} does not run on this GPU ({first_line(error)}), and with --batch-invariant no "
                "other may take its place; leave it out"
            ) from error

    return call
