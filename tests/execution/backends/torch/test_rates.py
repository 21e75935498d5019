"""Peak rates of a device by PyTorch's operations: on the CPU, to see that each probe runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from inflight.execution.backends.torch import rates
from inflight.execution.backends.torch.rates import flops_per_s, read_bytes_per_s

CPU = torch.device("cpu")


def test_each_format_is_multiplied() -> None:
    found = flops_per_s(CPU, 64, fp8=True)
    assert list(found) == ["bfloat16", "float32", "int8", "fp8"]
    assert all(0 < rate < float("inf") for rate in found.values())
    assert list(flops_per_s(CPU, 64, fp8=False)) == ["bfloat16", "float32", "int8"]


def test_reading_is_counted_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight times as many in as many seconds is eight times the rate."""
    monkeypatch.setattr(rates, "time", SimpleNamespace(perf_counter=iter(range(100)).__next__))
    small, large = (read_bytes_per_s(CPU, size) for size in (1 << 10, 1 << 13))
    assert (small, large) == (1 << 10, 1 << 13)
