"""Measures a device's peak rates by PyTorch's operations: bytes read, and operations multiplied with, per second.

The best of some tries, from memory that no cache holds, on random numbers, which take more power than zeros;
`execution.roofline` computes with them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from inflight.execution.backends.torch.device import gpu_memory, gpu_name, has_fp8

_READ = 4 << 30  # bytes: many times the cache of any GPU; less where less is free
_SIDE = 8192  # of the matrices that are multiplied
_TRIES = 5


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """flops_per_s: by the format of what is multiplied, a multiply-add counts two; without those that it has not."""

    name: str
    total_bytes: int
    free_bytes: int
    read_bytes_per_s: float
    flops_per_s: dict[str, float]


def device_rates(device: str) -> DeviceRates:
    """Measure a GPU, in about a second."""
    gpu = torch.device(device)
    memory = gpu_memory(gpu)
    read = read_bytes_per_s(gpu, min(_READ, memory.free // 2))
    return DeviceRates(gpu_name(device), memory.total, memory.free, read, flops_per_s(gpu, _SIDE, has_fp8(gpu)))


def read_bytes_per_s(device: torch.device, nbytes: int) -> float:
    """Measure reading by a sum, which writes nothing."""
    values = torch.ones(nbytes // 4, dtype=torch.float32, device=device)
    return 4 * len(values) / _min_seconds(device, values.sum)


def flops_per_s(device: torch.device, side: int, fp8: bool) -> dict[str, float]:
    """Measure products of square matrices, in operations per second by data type."""
    found = {}
    for name, product in _products(torch.randn(side, side, device=device), fp8).items():
        found[name] = 2 * side**3 / _min_seconds(device, product)
    return found


def _products(values: Tensor, fp8: bool) -> dict[str, Callable[[], object]]:
    narrow, whole = values.to(torch.bfloat16), (values * 30).clamp(-127, 127).to(torch.int8)
    products: dict[str, Callable[[], object]] = {
        "bfloat16": lambda: narrow @ narrow.T,
        "float32": lambda: values @ values.T,
        "int8": lambda: torch._int_mm(whole, whole.T),
    }
    if fp8:
        few, one = values.to(torch.float8_e4m3fn), torch.ones((), device=values.device)
        products["fp8"] = lambda: torch._scaled_mm(few, few.T, one, one, out_dtype=torch.bfloat16)
    return products


def _min_seconds(device: torch.device, run: Callable[[], object]) -> float:
    """Return the least seconds of some runs; the first run, which loads what it needs, does not count."""
    _wait(device, run)
    found = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        _wait(device, run)
        found.append(time.perf_counter() - began)
    return min(found)


def _wait(device: torch.device, run: Callable[[], object]) -> None:
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
