"""Ranks without processes: each in a thread, with a sum over all of them, in the order of ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from inflight.execution.backends.protocol import DType
from inflight.execution.backends.torch.backend import TorchBackend
from inflight.execution.backends.torch.definitions import Definitions
from inflight.execution.backends.torch.summing import SummingLauncher

T = TypeVar("T")


class Together:
    """Sums of `ranks` threads."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._parts: list[torch.Tensor] = [torch.empty(0)] * ranks
        self._barrier = threading.Barrier(ranks, timeout=60)
        self.sums = 0

    def backend(self, rank: int, dtype: DType = "float32") -> TorchBackend:
        return TorchBackend(dtype, torch.device("cpu"), SummingLauncher(Definitions(), _Rank(self, rank)))

    def each(self, run: Callable[[int], T]) -> list[T]:
        """Return `run`'s result on every rank; where one fails none waits for it."""

        def guarded(rank: int) -> T:
            try:
                return run(rank)
            except BaseException:
                self._barrier.abort()
                raise

        with ThreadPoolExecutor(self._ranks) as threads:
            return list(threads.map(guarded, range(self._ranks)))

    def sum_of(self, rank: int, part: torch.Tensor) -> torch.Tensor:
        self._parts[rank] = part.clone()
        self._barrier.wait()
        total = self._parts[0].clone()
        for one in self._parts[1:]:
            total += one
        self._barrier.wait()
        self.sums += rank == 0
        return total


class _Rank:
    def __init__(self, together: Together, rank: int) -> None:
        self._together, self._rank = together, rank

    def sum_of(self, part: torch.Tensor) -> torch.Tensor:
        return self._together.sum_of(self._rank, part)

    def lacks(self, fault: Exception) -> None:
        raise fault

    def abandon(self) -> None:
        """A thread is never lost."""
