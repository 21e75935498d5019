"""Probes: what this machine's memory and arithmetic can do at most, measured with the kernels' own instructions."""

from __future__ import annotations

from typing import Literal

from inflight.execution.backends.native.backend import NativeBackend


def read_bandwidth_bytes_per_s(threads: int, isa: str = "auto") -> float:
    """Measured read bandwidth of `threads` threads."""
    return NativeBackend("float32", threads, isa).read_bandwidth_bytes_per_s()


def peak_flops(kind: Literal["bf16", "f32", "int8"], threads: int, isa: str = "auto") -> float:
    """Measured peak of multiply-adds, two operations each, of `threads` threads."""
    return NativeBackend("float32", threads, isa).peak_flops(kind)
