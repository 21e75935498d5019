"""A group of ranks, and sums over it: by NCCL on GPUs, by gloo on CPUs.

Groups are made without the one that `torch.distributed` has for a whole process, so that a process may be in several,
and in none again after one that failed. Every wait for another rank ends: with its answer, by an error once that rank
is gone, or after the group's time limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from inflight.execution.parallel.messages import PeerLost
from inflight.execution.parallel.shards import Member


class Ranks:
    def __init__(self, member: Member, device: str) -> None:
        """Join the group; wait for all others. Raises PeerLost."""
        self._rank, self._count = member.shard.rank, member.shard.ranks
        self._on_gpu = device != "cpu"
        self._is_alone = False
        self._shortage: Exception | None = None
        limit = timedelta(seconds=member.seconds)
        self._group: Any  # what both kinds offer is not typed
        try:
            store = dist.FileStore(str(Path(member.folder) / "store"), self._count)  # type: ignore[attr-defined]
            store.set_timeout(limit)
            if self._on_gpu:
                # A sum that waits too long is aborted, and the first rank reports which one is late; PyTorch would end
                # the whole process without a message.
                os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = limit
                self._group = dist.ProcessGroupNCCL(store, self._rank, self._count, options)
            else:
                self._group = dist.ProcessGroupGloo(store, self._rank, self._count, limit)
        except RuntimeError as error:
            raise PeerLost(f"{self._count} processes did not find each other: {_first_line(error)}") from error

    def sum_of(self, part: Tensor) -> Tensor:
        """float32[S, N] of each rank → their sum: the first rank's, plus the second's, and so on.

        Every rank gets all parts and adds them up in this order, so that ranks have the same bits, and a row has the
        same whatever else is in the batch: an all-reduce by a ring adds in an order that depends on where a number lies
        in the tensor. Each rank receives N - 1 parts for a ring's 2 · (N - 1) / N: as many for two ranks, twice as many
        for four. Raises PeerLost; on a GPU, waiting for the device raises it."""
        parts = torch.empty((self._count, *part.shape), dtype=part.dtype, device=part.device)
        try:
            if not self._is_alone:
                self._group.allgather([list(parts.unbind())], [part]).wait()
        except RuntimeError as error:
            raise PeerLost(_first_line(error)) from error
        total = parts[0]
        for one in parts[1:]:
            total += one
        return total

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Sum this rank's parts alone meanwhile, in the memory that sums take: others may still be loading. A shortage
        of memory is raised at the end."""
        self._is_alone = True
        try:
            yield
        finally:
            self._is_alone = False
        if (fault := self.shortage()) is not None:
            raise fault

    def lacks(self, fault: Exception) -> None:
        """Report that memory was short here for a part of a sum."""
        self._shortage = self._shortage or fault

    def shortage(self) -> Exception | None:
        """Return the first shortage of memory since the last call."""
        fault, self._shortage = self._shortage, None
        return fault

    def abandon(self) -> None:
        """Abort this rank's waiting kernels on a GPU: another rank is gone, for which they would wait without end.
        (gloo notices by itself.)"""
        if self._on_gpu:
            self._group.abort()


def _first_line(error: Exception) -> str:
    """Without the place in a file that gloo begins with."""
    return (str(error).splitlines() or ["no reason given"])[0].rpartition("] ")[2][:300]
