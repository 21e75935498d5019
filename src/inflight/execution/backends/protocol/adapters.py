"""Low-rank adapters (LoRA, https://arxiv.org/abs/2106.09685): matrices that are added to products of layers.

Knows shapes; neither files nor which layer a matrix is of.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from inflight.execution.backends.protocol.handles import GateUp, Linear
from inflight.execution.backends.protocol.number_formats import Array


class LowRank(NamedTuple):
    """To outputs first … first + N - 1 of a product of x is added act(x · downᵀ) · upᵀ, sums in float32. down: [R, K],
    up: [N, R], float32, float16 or uint16 (bf16); the adapter's factor is in `up`."""

    first: int
    down: Array
    up: Array


class Delta(Struct, frozen=True):
    """Low-rank matrices to add to a matrix's sums and bias before any other step; of a gated one to the sums of gate,
    outputs 0 … F - 1, and of up, F … 2F - 1. No output is in two parts."""

    weight: Linear | GateUp
    parts: tuple[LowRank, ...]
