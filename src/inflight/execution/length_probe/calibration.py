"""Calibration of predicted distributions: a map of their cumulative probabilities, learnt from where lengths fell.

If predictions were calibrated, the cumulative probability u = F(length) of lengths would be uniform. The histogram of
u, with older lengths forgotten, is how it is distributed instead, and its own cumulative distribution G makes G(F) of F
(Kuleshov et al., arXiv 1807.00263). Of a length that was cut at c, u lies somewhere above F(c): its weight goes to the
bins above, as they are filled (the redistribution to the right of Efron 1967).
"""

from __future__ import annotations

import numpy as np

from inflight.execution.length_probe.hazards import Floats

CELLS = 20
PRIOR = 5.0  # weight of each cell before any length
DECAY = 0.998  # for each length: half is forgotten after about 350


class Calibration:
    def __init__(self) -> None:
        self.histogram = np.full(CELLS, PRIOR)

    def applied(self, probabilities: Floats) -> Floats:
        """Return calibrated probabilities of bins, float32[S, BINS], of predicted ones."""
        grid = np.append(0.0, np.cumsum(self.histogram) / self.histogram.sum())
        reached = np.minimum(np.cumsum(probabilities, axis=1), 1.0)
        reached[:, -1] = 1.0
        mapped = np.interp(reached, np.linspace(0.0, 1.0, CELLS + 1), grid)
        found: Floats = np.diff(mapped, axis=1, prepend=0.0).astype(np.float32)
        return found

    def add(self, u: float, ended: bool) -> None:
        """Add a length's cumulative probability, as it was predicted. ended: by itself; otherwise it is at least u."""
        cell = min(CELLS - 1, int(u * CELLS))
        self.histogram = PRIOR + DECAY * (self.histogram - PRIOR)
        if ended:
            self.histogram[cell] += 1.0
        elif (above := self.histogram[cell:]).sum() > 0:
            above += above / above.sum()
