"""Axes (where a value lies between their ends, which values are named) and the frame of a chart: grid, legend, and from
values to pixels. Knows nothing of what is drawn inside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from inflight.report.charts.quantity import scale_of, short
from inflight.report.charts.svg import Point, rectangle, tag, text


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


WIDTH, HEIGHT = 380, 224
LEFT, RIGHT, BOTTOM = 44, 12, 36
_NARROW, _BROAD = set("fijlrt.,:;'()| "), set("mwMW%")
_LEGEND_LINE = 17


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of the legend: "line" with a mark, or "area"."""

    name: str
    class_: str
    kind: str = "line"
    mark: int = 0


class Frame:
    """x, y: axes. plot: left, top, width, height of the inside in pixels."""

    def __init__(self, x: Axis, y: Axis, keys: list[Key], width: float = WIDTH, height: float = HEIGHT):
        self.x, self.y, self.width, self.height = x, y, width, height
        self._legend, lines = _legend(keys, width)
        self.left, self.right = LEFT, width - RIGHT
        self.top = 24 + lines * _LEGEND_LINE
        self.bottom = height - BOTTOM

    @property
    def columns(self) -> int:
        """Stretches of two pixels."""
        return int(self.right - self.left) // 2

    def at(self, x: float, y: float) -> Point:
        return Point(self.at_x(x), self.at_y(y))

    def at_x(self, x: float) -> float:
        return self.left + self.x.place(x) * (self.right - self.left)

    def at_y(self, y: float) -> float:
        return self.bottom - self.y.place(y) * (self.bottom - self.top)

    def around(self, inside: str, x_ticks: bool = True, y_ticks: bool = True) -> str:
        """The whole chart."""
        parts = [self._legend]
        if y_ticks:
            for value, name in self.y.ticks(4):
                y = self.at_y(value)
                parts.append(tag("path", d=f"M{self.left} {y:.1f}H{self.right}", class_="grid"))
                parts.append(text(self.left - 6, y + 4, name, anchor="end"))
            parts.append(text(2, self.top - 10, self.y.label, "label"))
        parts.append(inside)
        parts.append(tag("path", d=f"M{self.left} {self.bottom:.1f}H{self.right}", class_="axis"))
        if x_ticks:
            parts += self._x_ticks()
        return "".join(parts)

    def _x_ticks(self) -> list[str]:
        parts, last = [], -1e9
        for value, name in self.x.ticks(6 if self.width < 600 else 10):
            x = self.at_x(value)
            half = text_width(name) / 2
            if x - half < last + 6:
                continue
            last = x + half
            parts.append(tag("path", d=f"M{x:.1f} {self.bottom:.1f}v4", class_="axis"))
            parts.append(text(min(x, self.width - half), self.bottom + 16, name, anchor="middle"))
        middle = (self.left + self.right) / 2
        return [*parts, text(middle, self.bottom + 31, self.x.label, "label", "middle")]


def text_width(words: str) -> float:
    """In pixels, about: fonts differ from machine to machine."""
    return sum(4.5 if one in _NARROW else 11 if one in _BROAD else 8.6 if one.isupper() else 7.6 for one in words)


def mark(point: Point, number: int, class_: str) -> str:
    """A point's shape: circle, square, diamond, triangle, by the series' number."""
    x, y = point
    match number % 4:
        case 0:
            return tag("circle", cx=x, cy=y, r=3.6, class_=class_)
        case 1:
            return tag("path", d=rectangle(x - 3.3, y - 3.3, 6.6, 6.6), class_=class_)
        case 2:
            return tag("path", d=f"M{x:.1f} {y - 4.6:.1f}l4.6 4.6l-4.6 4.6l-4.6 -4.6z", class_=class_)
    return tag("path", d=f"M{x:.1f} {y - 4.4:.1f}l4.4 8h-8.8z", class_=class_)


def cross(point: Point) -> str:
    """Over a point that does not count."""
    x, y = point
    return tag("path", d=f"M{x - 6:.1f} {y - 6:.1f}l12 12m0 -12l-12 12", class_="cross")


def _legend(keys: list[Key], width: float) -> tuple[str, int]:
    """SVG, and how many lines it takes."""
    if not keys:
        return "", 0
    parts, x, line = [], 2.0, 0
    for key in keys:
        needed = 24 + text_width(key.name) + 14
        if x > 2 and x + needed > width:
            x, line = 2.0, line + 1
        y = 8 + line * _LEGEND_LINE
        if key.kind == "area":
            parts.append(tag("path", d=rectangle(x, y - 5, 16, 10), class_=f"area {key.class_}"))
        else:
            parts.append(tag("path", d=f"M{x:.1f} {y}h18", class_=f"line {key.class_}"))
            if key.kind == "marked":
                parts.append(mark(Point(x + 9, y), key.mark, key.class_))
        parts.append(text(x + 24, y + 4, key.name, "key"))
        x += needed
    return "".join(parts), line + 1
