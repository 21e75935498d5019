"""Averages of what drifts: the newest counts most."""

from __future__ import annotations


class DecayingMean:
    """Exponential moving average: each value moves it by a share of the difference."""

    __slots__ = ("_share", "value")

    def __init__(self, share: float):
        """share: weight of the newest value."""
        self._share = share
        self.value: float | None = None  # before the first

    def add(self, value: float) -> None:
        """Learn a value."""
        self.value = value if self.value is None else self.value + self._share * (value - self.value)


class DecayingRatio:
    """Ratio of two sums whose terms decay with each new pair."""

    __slots__ = ("_decay", "over", "under")

    def __init__(self, decay: float, over: float = 0.0, under: float = 0.0):
        """Start with sums that are known beforehand.

        Args:
            decay: Factor of both sums for each pair.
            over: Numerator.
            under: Denominator.
        """
        self._decay, self.over, self.under = decay, over, under

    def add(self, over: float, under: float) -> None:
        """Learn a pair."""
        self.over = self._decay * self.over + over
        self.under = self._decay * self.under + under

    def fade(self, factor: float) -> None:
        """Decay both sums, towards the prior of `value`."""
        self.over *= factor
        self.under *= factor

    def value(self, prior: float = 1.0, weight: float = 0.0) -> float:
        """Return the ratio.

        Args:
            prior: Ratio that is believed without evidence.
            weight: What it counts for, in units of the denominator.
        """
        under = self.under + weight
        return (self.over + weight * prior) / under if under > 0 else prior
