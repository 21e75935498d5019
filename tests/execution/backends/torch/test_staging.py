"""Weights that are read by several threads into buffers, and copied from there while more is read."""

from __future__ import annotations

import mmap
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from inflight.execution.backends.torch import packing
from inflight.execution.backends.torch.packing import Packer
from inflight.execution.backends.torch.staging import Staging

from .delayed import DelayedStream

RANDOM = np.random.default_rng(7)


def staged(stream: DelayedStream, readers: int = 2, piece: int = 1000) -> Staging:
    return Staging(stream, readers, piece, pinned=False)


@pytest.mark.parametrize("size", [1, 999, 1000, 3999, 4000, 4001, 50_123])
def test_all_bytes_arrive_though_buffers_are_used_again(size: int) -> None:
    """Copies are done as late as they may be: who reads into a buffer waits for the copy of what it held."""
    stream = DelayedStream()
    staging = staged(stream)
    for _ in range(2):  # the second finds buffers that are on their way
        values, target = RANDOM.integers(0, 256, size, np.uint8), torch.zeros(size, dtype=torch.uint8)
        staging.send(values, target)
        assert np.array_equal(target.numpy(), values)
    assert stream.calls == ["follow", "hold"] * 2, "neither before memory is free, nor read before it is there"
    staging.close()


def test_a_source_may_go_when_the_call_returns(tmp_path: Path) -> None:
    path, values = tmp_path / "weights", RANDOM.integers(0, 256, 30_000, np.uint8)
    path.write_bytes(values.tobytes())
    target = torch.zeros(30_000, dtype=torch.uint8)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        staging = staged(DelayedStream())
        staging.send(view, target)
        staging.close()
        del view  # whose map can be closed only once it has no owner
    assert np.array_equal(target.numpy(), values)


def test_several_threads_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reader waits for the others: alone it would wait in vain."""
    together, copyto = threading.Barrier(3, timeout=60), np.copyto

    def meet(target: np.ndarray, source: np.ndarray) -> None:
        together.wait()
        copyto(target, source)

    monkeypatch.setattr(np, "copyto", meet)
    values, target = RANDOM.integers(0, 256, 6000, np.uint8), torch.zeros(6000, dtype=torch.uint8)
    staging = staged(DelayedStream(), readers=3)
    staging.send(values, target)
    staging.close()
    assert np.array_equal(target.numpy(), values)


@pytest.mark.parametrize("hold", ["act", "int8", "int4", "fp8"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16])
def test_what_is_packed_is_the_same(monkeypatch: pytest.MonkeyPatch, hold: str, dtype: type) -> None:
    monkeypatch.setattr(packing, "_STAGED", 64)
    matrix = RANDOM.standard_normal((48, 96)).astype(np.float32)
    given = (matrix.view(np.uint32) >> 16).astype(np.uint16) if dtype is np.uint16 else matrix.astype(dtype)
    stream = DelayedStream()
    plain = Packer(torch.bfloat16, torch.device("cpu")).held(given, hold)  # type: ignore[arg-type]
    found = Packer(torch.bfloat16, torch.device("cpu"), staged(stream)).held(given, hold)  # type: ignore[arg-type]
    assert stream.copies
    for ours, theirs in zip(packing._tensors(found), packing._tensors(plain), strict=True):
        assert ours.dtype == theirs.dtype and torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


def test_columns_of_a_matrix_are_copied_as_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_STAGED", 64)
    values, stream = RANDOM.standard_normal((8, 64)).astype(np.float32), DelayedStream()
    found = Packer(torch.float32, torch.device("cpu"), staged(stream)).tensor(values[:, 16:48])
    assert np.array_equal(found.numpy(), values[:, 16:48]) and not stream.copies
