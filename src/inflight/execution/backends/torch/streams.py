"""A stream beside that of the steps, on which copies go on while these compute. On a CPU there is none: a copy is done
when its call returns."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Event(Protocol):
    """A point in a stream's work."""

    def query(self) -> bool:
        """Whether all before it is done."""

    def synchronize(self) -> None:
        """Wait until all before it is done."""


class CopyStream(Protocol):
    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy tensors of equal sizes and type, contiguous; host memory is pinned, or the call waits."""

    def mark(self) -> Event:
        """Return an event behind all copies until now."""

    def follow_steps(self) -> None:
        """Make later copies wait for the steps' work so far."""

    def hold_steps(self) -> None:
        """Make the steps' later work wait for the copies so far."""


class CudaCopyStream:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(self, target: Tensor, source: Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def mark(self) -> Event:
        event: Event = self._stream.record_event()
        return event

    def follow_steps(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def hold_steps(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
