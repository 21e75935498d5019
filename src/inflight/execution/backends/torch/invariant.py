"""Operations whose bits for a row do not depend on how many rows there are.

Knows that some have a form of which that holds (`invariant` among their parameters), which is slower where rows are
few or cuBLAS would be faster; of the others it holds anyway.
"""

from __future__ import annotations

import inspect
from functools import partial
from types import ModuleType


class InvariantOperations:
    """Those of a module (its `__all__`)."""

    def __init__(self, operations: ModuleType) -> None:
        for name in operations.__all__:
            operation = getattr(operations, name)
            has_form = "invariant" in inspect.signature(operation).parameters
            setattr(self, name, partial(operation, invariant=True) if has_form else operation)
