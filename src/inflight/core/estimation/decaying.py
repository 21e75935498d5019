"""Averages of quantities that drift: the newest value counts most."""

from __future__ import annotations


class DecayingMean:
    """Exponential moving average: each value moves it by a share of the difference."""

    __slots__ = ("_share", "value")

    def __init__(self, share: float):
        """share: weight of the newest value."""
        self._share = share
        self.value: float | None = None  # before the first

    def add(self, value: float) -> None:
        self.value = value if self.value is None else self.value + self._share * (value - self.value)


class DecayingRatio:
    """Ratio of two sums whose terms decay with each new pair."""

    __slots__ = ("_decay", "_denominator", "_numerator")

    def __init__(self, decay: float, numerator: float = 0.0, denominator: float = 0.0):
        """Start with these sums. decay: factor of both for each pair."""
        self._decay, self._numerator, self._denominator = decay, numerator, denominator

    def add(self, numerator: float, denominator: float) -> None:
        """Learn a pair."""
        self._numerator = self._decay * self._numerator + numerator
        self._denominator = self._decay * self._denominator + denominator

    def fade(self, factor: float) -> None:
        """Decay both sums without a new pair, towards the prior of `value`."""
        self._numerator *= factor
        self._denominator *= factor

    def value(self, prior: float = 1.0, weight: float = 0.0) -> float:
        """Return the ratio, or the prior without evidence. weight: of the prior, in units of the denominator."""
        denominator = self._denominator + weight
        return (self._numerator + weight * prior) / denominator if denominator > 0 else prior
