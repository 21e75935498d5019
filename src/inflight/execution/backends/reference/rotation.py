"""Rotary position embedding (Su et al., "RoFormer", arXiv 2104.09864), from tables of cosines.

Knows the rotation of heads by their tokens' positions; which models rotate what is in the tables (`execution.rope`).
"""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.protocol import Array, RopeTable


def rotated(heads: Array, rope: RopeTable, positions: Array) -> Array:
    """float32[T, H, D] → each head rotated by the position of its token, positions int32[T].

    With R the numbers that are rotated and i < R / 2, by halves:

        y[i]         = x[i] · cos[p, i] - x[i + R / 2] · sin[p, i]
        y[i + R / 2] = x[i + R / 2] · cos[p, i] + x[i] · sin[p, i]

    What is behind R stays as it is.
    """
    cos, sin = rope.cos[positions][:, None], rope.sin[positions][:, None]
    half = cos.shape[-1]
    low, high, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin, rest], axis=-1)


def scaled_queries(heads: Array, rope: RopeTable, positions: Array) -> Array:
    """float32[T, H, D] times the factor that some models have for queries of each position."""
    return heads if rope.q_scale is None else heads * rope.q_scale[positions][:, None, None]
