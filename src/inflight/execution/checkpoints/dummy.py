"""Random weights of any model, without a download: `--load-format dummy`.

Knows the scale that trained weights have (normal, 0.02; norms around 1) and makes them fast. Does not know the model:
it answers whatever name and shape it is asked for. Speed, memory and scheduling are those of the real model; what it
says is noise.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np

from inflight.execution.backends.bf16 import to_bf16
from inflight.execution.backends.protocol import Array, DType

_SCALE = 0.02
# Drawing a normal value costs a hundred times what copying it does, so one pool is drawn and every tensor is cut from
# it. Its length is prime: a row never falls on the same values as the row before.
_POOL_VALUES = 1_048_573


class DummyWeights:
    """Tensors drawn by (seed, name), the same on every machine."""

    def __init__(self, dtype: DType = "bfloat16", seed: int = 0) -> None:
        self._seed = seed
        pool = np.random.default_rng(seed).standard_normal(_POOL_VALUES, np.float32) * np.float32(_SCALE)
        self._norms = pool
        self._pool = to_bf16(pool) if dtype == "bfloat16" else pool

    def __contains__(self, name: str) -> bool:
        """Everything exists, but for an output projection that a tied model might have beside its table."""
        return name != "lm_head.weight"

    def tensor(self, name: str, shape: Sequence[int]) -> Array:
        """A new array [shape], uint16 (bf16) or float32 as asked for at the start; float32 for norms."""
        pool = self._norms + np.float32(1) if name.endswith("norm.weight") else self._pool
        count = math.prod(shape)
        begin = zlib.crc32(f"{self._seed} {name}".encode()) % len(pool)
        values = np.empty(count, pool.dtype)
        done = 0
        while done < count:
            piece = pool[begin : begin + count - done]
            values[done : done + len(piece)] = piece
            done, begin = done + len(piece), 0
        return values.reshape(shape)

    def matrix(self, name: str, shape: tuple[int, int]) -> Array:
        return self.tensor(name, shape)

    def release(self, name: str) -> None:
        """Nothing is kept: a tensor's memory goes with its array."""
