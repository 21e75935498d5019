"""A quantile of a positive quantity that drifts: a histogram over logarithmic bins whose contents fade.

Knows numbers only. Nothing is stored but the weight of each bin (a twelfth of an octave, 6 % wide), so that a high
quantile costs as little as a median, and heavy tails need no bounds set beforehand.
"""

from __future__ import annotations

import math

BINS_PER_OCTAVE = 12
LARGEST = 1e12  # weights grow instead of fading one by one; when an increment gets this large, all are scaled down


class Quantile:
    def __init__(self, share: float, memory: float):
        """share: of the weight that lies at or below the answer. memory: weight after which an observation counts
        for 1/e."""
        self._share = share
        self._memory = memory
        self._bins: dict[int, float] = {}
        self._increment = 1.0
        self._total = 0.0

    @property
    def weight(self) -> float:
        """What was observed and has not faded; at most about the memory."""
        return self._total / self._increment

    def observe(self, value: float, weight: float = 1.0) -> None:
        """A value above 0; others are passed over."""
        if value <= 0 or weight <= 0:
            return
        self._increment *= math.exp(weight / self._memory)
        place, added = _bin(value), weight * self._increment
        self._bins[place] = self._bins.get(place, 0.0) + added
        self._total += added
        if self._increment > LARGEST:
            self._scale_down()

    def value(self) -> float | None:
        """The quantile (its bin's upper border, so rather too much than too little), None before any observation."""
        passed, sought = 0.0, self._share * self._total
        for place in sorted(self._bins):
            passed += self._bins[place]
            if passed >= sought:
                return float(2.0 ** ((place + 1) / BINS_PER_OCTAVE))
        return None

    def _scale_down(self) -> None:
        factor = 1.0 / self._increment
        # What has faded to nothing goes, so that the bins stay few.
        self._bins = {place: held * factor for place, held in self._bins.items() if held * factor > 1e-9}
        self._total, self._increment = sum(self._bins.values()), 1.0


def _bin(value: float) -> int:
    return math.floor(math.log2(value) * BINS_PER_OCTAVE)
