"""Uploads a step's inputs: arrays of whole numbers, side by side in one piece of host memory, copied in one go.

On a GPU the host's memory is pinned, so that no thread waits for the copy; PyTorch reuses such memory only when the
copies from it have passed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inflight.execution.backends.protocol import Array

_ALIGNED = 4  # numbers of 32 bits: each array begins at a multiple of 16 bytes, as kernels read best
_KEPT = 1 << 16  # numbers of the memory that stays


class Upload:
    """Uploads to one device. Kept arrays lie in memory that stays where it is: those of one size, sent in the same
    order, have the same addresses in each step, as a captured graph needs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept = torch.empty(_KEPT, dtype=torch.int32, device=device)

    def send(self, arrays: Sequence[Array], keep: int = 0) -> list[Tensor]:
        """Return arrays on the device.

        Args:
            arrays: Of one dimension each, and 32 bits an element; longer elements and floats as int32 views.
            keep: How many of them, the first, lie in the memory that stays, if they fit; the next such call overwrites
                them.
        """
        starts, end = [], 0
        for one in arrays:
            starts.append(end)
            end += -(-len(one) // _ALIGNED) * _ALIGNED
        host = torch.empty(end, dtype=torch.int32, pin_memory=self._device.type == "cuda")
        numbers = host.numpy()
        for start, one in zip(starts, arrays, strict=True):
            numbers[start : start + len(one)] = one
        sent, kept = self._sent(host, end if keep == len(starts) else starts[keep])
        return [
            (kept if index < keep else sent)[start : start + len(one)]
            for index, (start, one) in enumerate(zip(starts, arrays, strict=True))
        ]

    def _sent(self, host: Tensor, keep: int) -> tuple[Tensor, Tensor]:
        """Return all of it, and its first `keep` numbers where they are kept: in one copy, if the memory that stays is
        long enough for all."""
        if not keep or keep > len(self._kept):
            sent = host.to(self._device, non_blocking=True)
            return sent, sent
        if len(host) <= len(self._kept):
            self._kept[: len(host)].copy_(host, non_blocking=True)
            return self._kept, self._kept
        self._kept[:keep].copy_(host[:keep], non_blocking=True)
        return host.to(self._device, non_blocking=True), self._kept


def bits(values: Array) -> Array:
    """Return numbers of 32 or 64 bits as int32, in one dimension."""
    return np.ascontiguousarray(values).ravel().view(np.int32)
