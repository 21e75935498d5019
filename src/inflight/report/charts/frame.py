"""The frame of our own pictures: legend, time axis, an optional scale at the left; and values as pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inflight.report.charts.chart import Key
from inflight.report.charts.quantity import scale_of, short
from inflight.report.charts.svg import rectangle, tag, text

WIDTH, WIDE = 380, 940  # pixels of a picture in a column of the page, and of one across it
LEFT, RIGHT, BOTTOM = 44, 12, 36
_NARROW, _BROAD = set("fijlrt.,:;'()| "), set("mwMW%")
_LEGEND_LINE, _LABEL = 17, 19  # pixels: a line of the legend; a label between it and the plot


@dataclass(frozen=True, slots=True)
class Axis:
    """name: of the measure. unit: "s", "blocks", …"""

    low: float
    high: float
    name: str
    unit: str = ""

    @property
    def label(self) -> str:
        unit = scale_of(self.high, self.unit)[1]
        if self.name and unit.startswith(self.name):
            return unit
        return f"{self.name}, {unit}" if unit else self.name

    def position(self, value: float) -> float:
        """Return 0 at the low end, 1 at the high end; values beyond are put on the end."""
        share = (value - self.low) / max(self.high - self.low, 1e-300)
        return min(1.0, max(0.0, share))

    def ticks(self, about: int = 5) -> list[tuple[float, str]]:
        factor = scale_of(self.high, self.unit)[0]
        step = _round_up((self.high - self.low) / factor / about) * factor
        if step <= 0:
            return [(self.low, short(self.low / factor))]
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [(index * step, short(round(index * step / factor, 9))) for index in range(first, last + 1)]


def _round_up(value: float) -> float:
    """Round up to 1, 2, 2.5 or 5 · 10ⁿ."""
    if value <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(one * power for one in (1, 2, 2.5, 5, 10) if one * power >= value * (1 - 1e-9))


class Frame:
    """left, top, right, bottom: of the plot. label: at the plot's upper left, of lanes; a scale at the left has its
    own."""

    def __init__(
        self,
        x: Axis,
        keys: Sequence[Key],
        tall: float,
        width: float = WIDE,
        left: float = LEFT,
        y: Axis | None = None,
        label: str = "",
    ):
        """Lay out a picture. tall: pixels of the plot."""
        self._x, self._y, self._width = x, y, width
        self._label = y.label if y is not None else label
        self._legend, lines = _legend(keys, width)
        self.left, self.right = left, width - RIGHT
        self.top = lines * _LEGEND_LINE + (_LABEL if self._label else 4)
        self.bottom = self.top + tall
        self.height = self.bottom + BOTTOM

    def at_x(self, x: float) -> float:
        return self.left + self._x.position(x) * (self.right - self.left)

    def at_y(self, y: float) -> float:
        """Return the pixel of a value of the scale at the left."""
        assert self._y is not None, "lanes have no scale"
        return self.bottom - self._y.position(y) * (self.bottom - self.top)

    def around(self, inside: str) -> str:
        """Return the whole picture, around what is drawn inside."""
        parts = [self._legend]
        if self._label:
            parts.append(text(2, self.top - 7, self._label, "label"))
        for value, name in self._y.ticks(4) if self._y is not None else ():
            y = self.at_y(value)
            parts.append(tag("path", d=f"M{self.left} {y:.1f}H{self.right}", class_="grid"))
            parts.append(text(self.left - 6, y + 4, name, anchor="end"))
        parts.append(inside)
        parts.append(tag("path", d=f"M{self.left} {self.bottom:.1f}H{self.right}", class_="axis"))
        return "".join([*parts, *self._x_ticks()])

    def _x_ticks(self) -> list[str]:
        parts, last = [], -1e9
        for value, name in self._x.ticks(6 if self._width < 600 else 10):
            x = self.at_x(value)
            half = text_width(name) / 2
            if x - half < last + 6:
                continue
            last = x + half
            parts.append(tag("path", d=f"M{x:.1f} {self.bottom:.1f}v4", class_="axis"))
            parts.append(text(min(x, self._width - half), self.bottom + 16, name, anchor="middle"))
        middle = (self.left + self.right) / 2
        return [*parts, text(middle, self.bottom + 31, self._x.label, "label", "middle")]


def text_width(text: str) -> float:
    """Return about how many pixels a text takes: fonts differ from machine to machine."""
    return sum(4.5 if one in _NARROW else 11 if one in _BROAD else 8.6 if one.isupper() else 7.6 for one in text)


def _fitted(name: str, room: float) -> str:
    """Return a name, or its beginning and its end where there is no room for all of it."""
    wide = text_width(name)
    if wide <= room:
        return name
    kept = max(4, int(len(name) * 0.9 * room / wide))
    return f"{name[: kept // 2]}…{name[-(kept - kept // 2) :]}"


def _legend(keys: Sequence[Key], width: float) -> tuple[str, int]:
    """Return SVG, and how many lines it takes."""
    if not keys:
        return "", 0
    parts, x, line = [], 2.0, 0
    for key in keys:
        name = _fitted(key.name, width - 30)
        needed = 24 + text_width(name) + 14
        if x > 2 and x + needed > width:
            x, line = 2.0, line + 1
        y = 8 + line * _LEGEND_LINE
        parts.append(tag("path", d=rectangle(x, y - 5, 16, 10), class_=f"area {key.class_}"))
        parts.append(text(x + 24, y + 4, name, "key"))
        x += needed
    return "".join(parts), line + 1
