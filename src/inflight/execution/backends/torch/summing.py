"""A device that computes with others: products that are parts of a sum are added up over all of them.

Where memory is short for an operation, what it should have written stays as it was, and the pass goes on with that:
the others would wait for this device's part of each sum that is to come. The results of such a pass are discarded
(`parallel.executor`). A graph that is captured would keep the gap, and is abandoned instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from inflight.execution import ops
from inflight.execution.backends.torch.device_pass import DevicePass
from inflight.execution.backends.torch.launcher import Launcher
from inflight.execution.device_faults import is_out_of_memory
from inflight.execution.program import Operation


class Summing(Protocol):
    """Devices that compute together, as one of them sees them."""

    def sum_of(self, part: Tensor) -> Tensor:
        """float32[S, N] of each device → their sum, of the same shape, with the same bits on each, and of a row with
        the same bits whatever stands in others."""

    def lacks(self, fault: Exception) -> None:
        """Report that this device had no memory for its part of a sum."""

    def abandon(self) -> None:
        """Another one is gone: what this one waits for it with ends."""


class SummingLauncher:
    """Launches work by another launcher, and adds up the products that are parts of a sum."""

    def __init__(self, launcher: Launcher, ranks: Summing) -> None:
        self._launcher, self.ranks = launcher, ranks
        self.begin, self.sample, self.score = launcher.begin, launcher.sample, launcher.score

    def launch(self, operation: Operation[...], on: DevicePass, arguments: Sequence[Any]) -> None:
        if not any(getattr(one, "is_partial", False) for one in arguments):
            self._attempt(operation, on, arguments)
            return
        *given, out = arguments  # so have all operations with partial products
        if operation is ops.linear:
            self._attempt(operation, on, arguments)
            out.copy_(self.ranks.sum_of(out))
            return
        is_linear = operation is ops.linear_residual
        part = torch.empty_like(out) if is_linear else torch.zeros_like(out)  # of what is added to `out`
        self._attempt(ops.linear if is_linear else operation, on, (*given, part))
        out += self.ranks.sum_of(part)

    def _attempt(self, operation: Operation[...], on: DevicePass, arguments: Sequence[Any]) -> None:
        try:
            self._launcher.launch(operation, on, arguments)
        except Exception as fault:
            capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]
            if capturing or not is_out_of_memory(fault):
                raise
            self.ranks.lacks(fault.with_traceback(None))  # whose frames hold tensors
