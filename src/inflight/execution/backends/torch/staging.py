"""Weights on their way to a device: read by several threads into pinned memory, copied from there while more is read.

A file that is mapped into memory is read page by page as it is touched: one thread waits for each page, several keep a
disk busy. Of a tensor no more is in host memory than the pieces that are on their way.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from inflight.execution.backends.protocol import Array
from inflight.execution.backends.torch.streams import CopyStream, Event

READERS = 8
PIECE = 16 << 20  # bytes


class Staging:
    """Buffers are taken when they are first needed, and given back by `close`."""

    def __init__(self, stream: CopyStream, readers: int = READERS, piece: int = PIECE, pinned: bool = True) -> None:
        """piece: bytes of a buffer; there are two for each reader."""
        self._stream, self._readers, self._piece, self._pinned = stream, readers, piece, pinned
        self._buffers: list[_Buffer] = []
        self._pool: ThreadPoolExecutor | None = None

    def send(self, source: Array, target: Tensor) -> None:
        """source: contiguous. target: of as many bytes, on the device. When the call returns all of the source is read;
        whatever the steps' stream is asked for later finds it in `target`."""
        values, into = source.reshape(-1).view(np.uint8), target.view(-1).view(torch.uint8)
        if not self._buffers:
            self._open()
        assert self._pool is not None
        self._stream.follow_steps()  # who may still read what this memory held before
        starts, reading = range(0, len(values), self._piece), list[Future[None]]()
        for place, start in enumerate(starts):
            reading.append(self._pool.submit(self._buffer(place).read, values[start : start + self._piece]))
            if place + 1 >= len(self._buffers):
                self._copy(place + 1 - len(self._buffers), starts, reading, into)
        for place in range(max(0, len(starts) - len(self._buffers) + 1), len(starts)):
            self._copy(place, starts, reading, into)
        self._stream.hold_steps()

    def close(self) -> None:
        """Every copy is done."""
        for buffer in self._buffers:
            buffer.wait()
        self._buffers = []
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _open(self) -> None:
        self._pool = ThreadPoolExecutor(self._readers, "weights")
        self._buffers = [_Buffer(self._piece, self._pinned) for _ in range(2 * self._readers)]

    def _buffer(self, place: int) -> _Buffer:
        return self._buffers[place % len(self._buffers)]

    def _copy(self, place: int, starts: Sequence[int], reading: Sequence[Future[None]], into: Tensor) -> None:
        """Copy a piece to the device, once it is read."""
        reading[place].result()
        buffer, piece = self._buffer(place), into[starts[place] : starts[place] + self._piece]
        self._stream.copy(piece, buffer.memory[: len(piece)])
        buffer.copied = self._stream.mark()


class _Buffer:
    """Host memory of a piece, and when the copy of what it held last is done."""

    def __init__(self, size: int, pinned: bool) -> None:
        self.memory = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        self.copied: Event | None = None
        self._numbers = self.memory.numpy()

    def wait(self) -> None:
        if self.copied is not None:
            self.copied.synchronize()

    def read(self, values: Array) -> None:
        self.wait()
        np.copyto(self._numbers[: len(values)], values)  # which lets other threads run
