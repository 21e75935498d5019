"""Products of tokens in batches of many sizes, on one thread and several: none may change a token's bits.

Knows how a batch is cut; not how weights are held, which `pack` says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .conftest import ops_for
from .material import OnArrays, act, held, normal

_TOKENS = 200
# (first token, tokens): each kernel's tile of tokens, what is left beside it, and all.
_BATCHES = [(0, 1), (17, 1), (3, 2), (10, 5), (20, 6), (30, 12), (40, 13), (50, 33), (5, 195), (0, 200)]


def assert_same_bits_in_every_batch(
    dtype: str, isa: str, rows: int, columns: int, pack: Callable[[OnArrays], tuple[Any, Any]]
) -> None:
    """pack: backend → a linear and a gated weight of `rows` outputs over `columns` inputs."""
    x = held(dtype, normal(3, _TOKENS, columns))
    linear, gated = pack(ops_for(dtype, isa, 1))

    def products(threads: int, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        ops = ops_for(dtype, isa, threads)
        out, out_gated = np.empty((count, rows), np.float32), act(dtype, count, rows)
        ops.linear(x[first : first + count], linear, out)
        ops.gate_up(x[first : first + count], gated, out_gated)
        return out, out_gated

    whole = products(1, 0, _TOKENS)
    for threads in (1, 2, 3):
        for first, count in _BATCHES:
            for found, all_of_them in zip(products(threads, first, count), whole, strict=True):
                np.testing.assert_array_equal(found, all_of_them[first : first + count])
