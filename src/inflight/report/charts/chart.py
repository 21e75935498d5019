"""Charts as data: what uPlot draws of one on a page, and the table that says the same in numbers, to those who do not
see it and where no script runs.

Knows scales, series and how much of them a picture can show; how they are drawn, `page/charts.js` says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from msgspec import Struct

from inflight.report.charts.palette import DASHES, SERIES
from inflight.report.charts.quantity import scale_of

# lines: over x, with bands. stack: steps over x that lie on each other. columns: a column for each name, of parts that
# lie on each other. groups: for each name a column of every series, side by side. points: joined in their order.
Kind = Literal["lines", "stack", "columns", "groups", "points"]
MARKS = (  # shapes of points, SVG path data around their middle
    "M-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z",
    "M-3.3 -3.3h6.6v6.6h-6.6z",
    "M0 -4.6l4.6 4.6l-4.6 4.6l-4.6 -4.6z",
    "M0 -4.4l4.4 8h-8.8z",
)


class Scale(Struct, frozen=True, omit_defaults=True):
    """label: name and unit. factor: by what values are divided where they are told, in that unit. log: of values above
    zero. high: where it ends, and that it begins at zero, if that is fixed."""

    label: str
    unit: str = ""
    factor: float = 1.0
    log: bool = False
    high: float | None = None


class Point(Struct, frozen=True, omit_defaults=True):
    """name: what it stands for, in words. hollow, crossed: how far it is to be believed, as the caption says."""

    x: float
    y: float
    name: str
    hollow: bool = False
    crossed: bool = False


class Series(Struct, frozen=True, omit_defaults=True):
    """colour: a class of the palette. dash: of a line. values: as many as xs; None: nothing there. low, high: of a band
    or a whisker around each value. points: of a chart of points, instead of values; mark: their shape."""

    name: str
    colour: str
    dash: list[int] = []
    values: list[float | None] = []
    low: list[float | None] = []
    high: list[float | None] = []
    points: list[Point] = []
    mark: str = ""


class Plot(Struct, frozen=True, omit_defaults=True):
    """xs: rising. names: of columns and groups, which have no xs. labels: above each column. limit: a value that is not
    to be exceeded, drawn across. stepped: of lines whose values hold up to the next x."""

    kind: Kind
    x: Scale
    y: Scale
    series: list[Series]
    xs: list[float] = []
    names: list[str] = []
    labels: list[str] = []
    limit: float | None = None
    stepped: bool = False


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend: a name and what stands for it: a line, an area, or a line with a mark on it."""

    name: str
    class_: str
    kind: Literal["line", "area", "limit"] = "line"
    mark: str = ""


@dataclass(frozen=True, slots=True)
class ValueTable:
    """The first cell of a row names it."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """description: what it shows, for the caption. table: its values, or what they come to."""

    kind: ClassVar[str] = "chart"
    title: str
    description: str
    plot: Plot
    keys: tuple[Key, ...]
    table: ValueTable


def series_class(index: int) -> str:
    return f"s{index % SERIES + 1}"


def dash_of(colour: str) -> list[int]:
    """Of a series' line."""
    return [int(length) for length in DASHES[int(colour[1:]) - 1].split()]


def scale(greatest: float, name: str, unit: str = "", log: bool = False, high: float | None = None) -> Scale:
    """greatest: what is drawn; seconds are told in the unit that suits it."""
    factor, told = (0.01, "%") if unit == "share" else scale_of(greatest, unit)
    label = told if name and told.startswith(name) else ", ".join(filter(None, (name, told)))
    return Scale(label, told, factor, log, high)


def rounded(values: Iterable[float | None], digits: int = 4) -> list[float | None]:
    """As finely as a pixel can show it; what is no number is not there."""
    return [None if one is None or not math.isfinite(one) else float(f"{one:.{digits}g}") for one in values]


def places(values: Iterable[float]) -> list[float]:
    """Of the x axis, where a small difference of large values is seen."""
    return [float(f"{one:.7g}") for one in values]
