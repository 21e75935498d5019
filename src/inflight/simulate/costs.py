"""Seconds of the classes of work in a step, each with its bottleneck."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Bound = Literal["compute", "bandwidth", "link", "launch"]
KINDS = ("linear", "prefill attention", "decode attention", "logits head", "all-reduce", "launch")


class Cost(Struct, frozen=True, gc=False):
    """Seconds of one class of work in a step, and its bottleneck."""

    kind: str
    seconds: float
    bound: Bound


def slower(kind: str, compute: float, memory: float) -> Cost:
    """Return the cost of work that computes and moves bytes at once: the seconds of the slower of the two."""
    return Cost(kind, compute, "compute") if compute > memory else Cost(kind, memory, "bandwidth")
