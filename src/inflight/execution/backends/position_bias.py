"""The layout of bidirectional attention's position bias: for each head the numbers of distances from 1 - L to L - 1 (a
key's position less the query's), one behind the other, then 64 that are never used, so that a tile of positions may
be read whole."""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.protocol import Array

_BEHIND = 64
_FARTHEST = 128  # keys that are farther share a bucket


def reach_of(width: int) -> int:
    """L, of so many numbers of a head."""
    return (width + 1 - _BEHIND) // 2


def of_buckets(learnt: Array, reach: int) -> Array:
    """Lay out learnt numbers float32[buckets, H] as float32[H · (2 · reach - 1 + 64)]."""
    buckets, heads = learnt.shape
    every = np.zeros((heads, 2 * reach - 1 + _BEHIND), np.float32)
    every[:, : 2 * reach - 1] = learnt[_buckets(np.arange(1 - reach, reach), buckets)].T
    return every.ravel()


def _buckets(distances: Array, buckets: int) -> Array:
    """Return the bucket of each distance from a query to a key. Half of them are for keys behind the query; of each
    half, one is for each of the nearest distances and the others for ranges that grow up to `_FARTHEST` (Raffel et al.,
    arXiv 1910.10683)."""
    half, near = buckets // 2, np.abs(distances)
    exact = half // 2
    far = np.log(np.maximum(near, 1).astype(np.float32) / np.float32(exact)) / np.float32(np.log(_FARTHEST / exact))
    ranges = np.minimum(exact + (far * np.float32(half - exact)).astype(np.int64), half - 1)
    found: Array = np.where(distances > 0, half, 0) + np.where(near < exact, near, ranges)
    return found
