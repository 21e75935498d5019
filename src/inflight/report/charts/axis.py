"""An axis: where a value lies between its ends, and which values are named. Knows no pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass

from inflight.report.charts.quantity import scale_of, short


@dataclass(frozen=True, slots=True)
class Axis:
    """name: what is measured. unit: "s", "tokens", "share" (told in percent), … log: low must be above zero."""

    low: float
    high: float
    name: str
    unit: str = ""
    log: bool = False

    @property
    def label(self) -> str:
        unit = "%" if self.unit == "share" else scale_of(self.high, self.unit)[1]
        if self.name and unit.startswith(self.name):
            return unit
        return f"{self.name}, {unit}" if unit else self.name

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end; values beyond are put on the end."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            share = (math.log(max(value, self.low)) - low) / max(high - low, 1e-12)
        else:
            share = (value - self.low) / max(self.high - self.low, 1e-300)
        return min(1.0, max(0.0, share))

    def ticks(self, about: int = 5) -> list[tuple[float, str]]:
        factor = 0.01 if self.unit == "share" else scale_of(self.high, self.unit)[0]
        values = self._decades() if self.log else self._even(about, factor)
        return [(value, short(round(value / factor, 9))) for value in values]

    def _even(self, about: int, factor: float) -> list[float]:
        step = _round_up((self.high - self.low) / factor / about) * factor
        if step <= 0:
            return [self.low]
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [place * step for place in range(first, last + 1)]

    def _decades(self) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        marks = (1, 2, 5) if last - first <= 2 else (1,) if last - first > 4 else (1, 3)
        found = [mark * 10.0**power for power in range(first, last + 1) for mark in marks]
        return [value for value in found if self.low * 0.999 <= value <= self.high * 1.001]


def from_zero(greatest: float, name: str, unit: str = "") -> Axis:
    """From 0 to a round number above the greatest value."""
    factor = scale_of(greatest, unit)[0]
    step = _round_up(greatest / factor / 5) or 1.0
    high = math.ceil(greatest / factor / step - 1e-9) * step * factor if greatest > 0 else factor
    return Axis(0.0, high, name, unit)


def _round_up(value: float) -> float:
    """The next of 1, 2, 2.5, 5 · 10ⁿ."""
    if value <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(one * power for one in (1, 2, 2.5, 5, 10) if one * power >= value * (1 - 1e-9))
