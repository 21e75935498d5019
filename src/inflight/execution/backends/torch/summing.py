"""Operations of a device that computes with others: products that are parts of a sum are added up over all of them.

Knows which operations have such products, and what is written where; how tensors are added up over devices is known to
`Summing`, everything else to the operations that are wrapped.

Where memory is short for an operation, what it should have written stays as it was, and the pass goes on with that:
the others would wait for this device's part of each sum that is to come. The results of such a pass are discarded
(`parallel.executor`). A graph that is captured would keep the gap, and is abandoned instead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from inflight.execution.backends.torch.operations import DeviceOperations
from inflight.execution.backends.torch.weights import DeviceExperts, DeviceLinear
from inflight.execution.device_faults import is_out_of_memory

YIELDING = ("begin", "sample", "score")  # behind the last sum of a pass, or before the first


class Summing(Protocol):
    """Devices that compute together, as one of them sees them."""

    def sum_of(self, part: Tensor) -> Tensor:
        """float32[S, N] of each device → their sum, of the same shape, with the same bits on each, and of a row with
        the same bits whatever stands in others."""

    def lacks(self, fault: Exception) -> None:
        """Report that this device had no memory for its part of a sum."""

    def abandon(self) -> None:
        """Another one is gone: what this one waits for it with ends."""


class SummingOperations:
    """The wrapped ones, but for what has partial products; what all devices hold is not added up."""

    def __init__(self, operations: DeviceOperations, ranks: Summing) -> None:
        self._operations, self.ranks = operations, ranks

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._operations, name)
        if name not in YIELDING:
            operation = partial(self._attempt, operation)
        setattr(self, name, operation)
        return operation

    def _attempt(self, operation: Callable[..., None], *arguments: Any) -> None:
        try:
            operation(*arguments)
        except Exception as fault:
            capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]
            if capturing or not is_out_of_memory(fault):
                raise
            self.ranks.lacks(fault.with_traceback(None))  # whose frames hold tensors

    def linear(self, x: Tensor, weight: DeviceLinear, out: Tensor) -> None:
        self._attempt(self._operations.linear, x, weight, out)
        if weight.is_partial:
            out.copy_(self.ranks.sum_of(out))

    def linear_residual(self, x: Tensor, weight: DeviceLinear, out: Tensor) -> None:
        if not weight.is_partial:
            return self._attempt(self._operations.linear_residual, x, weight, out)
        part = torch.empty_like(out)
        self._attempt(self._operations.linear, x, weight, part)
        out += self.ranks.sum_of(part)

    def experts(self, x: Tensor, logits: Tensor, weight: DeviceExperts, out: Tensor) -> None:
        if not weight.is_partial:
            return self._attempt(self._operations.experts, x, logits, weight, out)
        part = torch.zeros_like(out)
        self._attempt(self._operations.experts, x, logits, weight, part)
        out += self.ranks.sum_of(part)
