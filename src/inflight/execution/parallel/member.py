"""One process among those that compute a model together: what it holds, and where it meets the others.

Knows values only, which go from one process to another.
"""

from __future__ import annotations

from msgspec import Struct

from inflight.execution.parallel.shards import Shard

SECONDS = 120.0  # that a device waits for another: kernels may be compiled for the first time in between


class Member(Struct, frozen=True):
    """folder: a folder of their own, by which processes find each other. seconds: after so many a wait for another one
    ends in an error."""

    shard: Shard
    folder: str
    seconds: float = SECONDS


def device_of(first: str, rank: int) -> str:
    """Return a rank's device: consecutive GPUs from the first rank's on; all ranks share a CPU."""
    kind, _, number = first.partition(":")
    return first if kind == "cpu" else f"{kind}:{int(number) + rank}"
