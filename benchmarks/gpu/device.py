"""A device under measurement: how long what it is asked for takes, and what it reads and multiplies at best."""

from __future__ import annotations

import gc
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

# Bytes: many times the second-level cache of any GPU of today, and a quarter of a millisecond to write, in which the
# host launches what is measured: an operation of several kernels would else be as slow as its launches.
_FLUSHED = 1 << 30
_PROBED = 4 << 30  # bytes that the reading probe goes through
_SIDE = 8192  # of the matrices that the multiplying probe takes


@dataclass(frozen=True, slots=True)
class Rates:
    """At best, as measured: bytes read from memory per second, and operations of matrix products in bf16 per second."""

    read_bytes_per_s: float
    flops_per_s: float

    def seconds(self, read: float, operations: float) -> float:
        """Return what so many bytes and operations take at least, both at once."""
        return max(read / self.read_bytes_per_s, operations / self.flops_per_s)


class MeasuredDevice:
    """act: what activations are held in, bf16; float32 on a CPU, since interpreted kernels are not right in bf16."""

    def __init__(self, name: str) -> None:
        """Raises RuntimeError where there is no such device."""
        self.device = numbered(torch.device(name))
        self.is_gpu = self.device.type == "cuda"
        self.act = torch.bfloat16 if self.is_gpu else torch.float32
        if not self.is_gpu:
            torch.set_num_threads(1)
        self._flush = torch.empty(_FLUSHED if self.is_gpu else 1, dtype=torch.uint8, device=self.device)

    @property
    def name(self) -> str:
        if not self.is_gpu:
            return f"a CPU ({platform.machine()}), kernels interpreted: times mean nothing"
        major, minor = torch.cuda.get_device_capability(self.device)
        gib = torch.cuda.get_device_properties(self.device).total_memory / 2**30
        return (
            f"{torch.cuda.get_device_name(self.device)} (sm_{major}{minor}, {gib:.0f} GiB), PyTorch {torch.__version__}"
        )

    def wait(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def forget(self) -> None:
        """Frees what an earlier model had, whose parts refer to each other."""
        gc.collect()
        if self.is_gpu:
            torch.cuda.empty_cache()

    def median(self, run: Callable[[], object], repeats: int = 15) -> float:
        """Seconds on the device, from memory: caches are emptied before each. The first two calls count for nothing."""
        if not self.is_gpu:
            return self._on_the_host(run)
        for _ in range(2):
            run()
        events = [(_event(), _event()) for _ in range(repeats)]
        for began, ended in events:
            self._flush.zero_()  # and while it does, the host gets ahead
            began.record()
            run()
            ended.record()
        self.wait()
        return statistics.median(float(began.elapsed_time(ended)) for began, ended in events) / 1e3

    @cached_property
    def rates(self) -> Rates:
        """On random numbers, which is what it multiplies in life; zeros would go faster."""
        length, side = (_PROBED, _SIDE) if self.is_gpu else (1 << 20, 128)
        read = torch.ones(length // 4, dtype=torch.float32, device=self.device)
        a, b = (torch.randn(side, side, dtype=self.act, device=self.device) for _ in range(2))
        return Rates(length / self.median(read.sum), 2 * side**3 / self.median(lambda: a @ b))

    def summary(self) -> str:
        """A sentence for the page."""
        rates = self.rates
        return (
            f"{self.name}. At best it reads {rates.read_bytes_per_s / 1e12:.2f} TB/s (the sum of 4 GiB) and multiplies "
            f"at {rates.flops_per_s / 1e12:.0f} TFLOP/s in bf16 (PyTorch's product of matrices of {_SIDE} by {_SIDE})."
        )

    @staticmethod
    def _on_the_host(run: Callable[[], object]) -> float:
        started = time.perf_counter()
        run()
        return time.perf_counter() - started


def numbered(device: torch.device) -> torch.device:
    """With the number of the GPU, which a backend makes the one of its thread. Raises RuntimeError where there is
    none."""
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch finds no GPU here: see nvidia-smi, or take --device cpu to see it run")
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
