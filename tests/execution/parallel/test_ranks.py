"""Sums over ranks, by gloo between threads: the same bits on each, in the order of ranks, whatever else is added up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import torch

from inflight.execution.backends.torch import device
from inflight.execution.parallel import ranks
from inflight.execution.parallel.messages import PeerLost
from inflight.execution.parallel.ranks import Ranks
from inflight.execution.parallel.shards import Member, Shard, device_of

from .test_shards import llama

T = TypeVar("T")


def each(ranks: int, folder: Path, run: Callable[[int, Ranks], T], seconds: float = 60.0) -> list[T]:
    """Return `run`'s result on every rank."""

    def one(rank: int) -> T:
        return run(rank, Ranks(Member(Shard(llama(), rank, ranks), str(folder), seconds), "cpu"))

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(one, range(ranks)))


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_row_has_the_same_sum_alone_and_among_others(ranks: int, tmp_path: Path) -> None:
    parts = torch.randn(ranks, 33, 40, generator=torch.Generator().manual_seed(ranks))

    def run(rank: int, group: Ranks) -> tuple[torch.Tensor, torch.Tensor]:
        among = group.sum_of(parts[rank])
        return among, torch.cat([group.sum_of(parts[rank, row : row + 1]) for row in range(33)])

    wanted = parts[0].clone()
    for part in parts[1:]:
        wanted += part
    for among, alone in each(ranks, tmp_path, run):
        assert torch.equal(among, wanted)
        assert torch.equal(alone, wanted)


def test_a_rank_that_does_not_come_is_lost(tmp_path: Path) -> None:
    def run(rank: int, group: Ranks) -> str | None:
        if rank == 1:  # not gone before the other has found it
            while not (tmp_path / "found").exists():
                time.sleep(0.01)
            return None
        (tmp_path / "found").touch()
        with pytest.raises(PeerLost) as lost:
            group.sum_of(torch.zeros(2, 3))
        return str(lost.value)

    done, _ = each(2, tmp_path, run, seconds=1.0)
    assert done


def test_a_rank_alone_waits_for_no_other_and_says_what_it_lacked(tmp_path: Path) -> None:
    """While the largest step is computed, others may still load."""

    def run(rank: int, group: Ranks) -> None:
        if rank == 1:
            return
        with group.alone():
            assert group.sum_of(torch.zeros(2, 3)).shape == (2, 3)
        with pytest.raises(MemoryError), group.alone():
            group.lacks(MemoryError())
        with pytest.raises(PeerLost):
            group.sum_of(torch.zeros(2, 3))

    each(2, tmp_path, run, seconds=1.0)


def test_a_group_that_no_rank_joins_is_reported(tmp_path: Path) -> None:
    with pytest.raises(PeerLost, match="2 processes did not find each other"):
        Ranks(Member(Shard(llama(), 0, 2), str(tmp_path), 0.5), "cpu")


def test_waits_on_gpus_are_bounded_and_do_not_end_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments of PyTorch's NCCL group, which is not here."""
    made: list[tuple[Any, ...]] = []

    class Group:
        Options = SimpleNamespace

        def __init__(self, *given: Any) -> None:
            made.append((os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING"), *given))
            self.aborted = False

        def abort(self) -> None:
            self.aborted = True

    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
    monkeypatch.setattr(ranks.dist, "ProcessGroupNCCL", Group, raising=False)
    group = Ranks(Member(Shard(llama(), 1, 2), str(tmp_path), 7.0), "cuda:1")
    ((handling, _, rank, count, options),) = made
    assert (handling, rank, count, options._timeout.total_seconds()) == ("2", 1, 2, 7.0)
    group.abandon()
    assert group._group.aborted


def test_ranks_have_gpus_side_by_side() -> None:
    assert [device_of("cuda:2", rank) for rank in range(3)] == ["cuda:2", "cuda:3", "cuda:4"]
    assert device_of("cpu", 1) == "cpu"


def test_missing_gpus_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_cuda", lambda asked: SimpleNamespace(device_count=lambda: 3))
    device.check_ranks("cuda:1", 2)
    with pytest.raises(device.DeviceError, match="--tensor-parallel-size 4 takes GPUs 0 to 3, and PyTorch sees 3"):
        device.check_ranks("cuda:0", 4)
