"""Least squares without negative unknowns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def nnls(matrix: Array, target: Array) -> Array:
    """Return x ≥ 0 that minimises |matrix · x - target|; matrix float64[n, k], target float64[n].

    Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23, on the normal equations as Bro and de Jong do
    (J. Chemometrics 11, 1997): unknowns enter the set of free ones by the steepest descent, and leave it on the way to
    a solution that would make them negative. Columns are scaled first; one of zeros gets 0.
    """
    scale = np.sqrt((matrix * matrix).sum(axis=0))
    scale[scale == 0] = 1.0
    scaled = matrix / scale
    gram, wanted = scaled.T @ scaled, scaled.T @ target
    found = np.zeros(matrix.shape[1])
    free = np.zeros(matrix.shape[1], dtype=bool)
    for _ in range(10 * len(found)):
        descent = np.where(free, -np.inf, wanted - gram @ found)
        best = int(np.argmax(descent))
        if descent[best] <= 1e-10:
            break
        free[best] = True
        while True:
            tried = np.zeros_like(found)
            tried[free] = np.linalg.lstsq(gram[np.ix_(free, free)], wanted[free], rcond=None)[0]
            falling = free & (tried <= 0)
            if not falling.any():
                found = tried
                break
            share = np.min(found[falling] / np.maximum(found[falling] - tried[falling], 1e-300))
            found += share * (tried - found)
            free &= found > 1e-14
            found[~free] = 0.0
            if not free.any():
                break
    result: Array = found / scale
    return result
