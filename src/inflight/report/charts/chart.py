"""Charts as data: series and scales that `page/charts.js` draws with uPlot, and a table of the same numbers, for screen
readers and where no script runs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from msgspec import Struct

from inflight.report.charts.palette import DASHES, SERIES
from inflight.report.charts.quantity import scale_of

# lines: over x, with bands. stack: stacked steps over x. columns: a column of stacked parts for each name. groups: for
# each name a column of every series, side by side. points: joined in their order.
Kind = Literal["lines", "stack", "columns", "groups", "points"]
MARKS = (  # shapes of points, SVG path data around their middle
    "M-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z",
    "M-3.3 -3.3h6.6v6.6h-6.6z",
    "M0 -4.6l4.6 4.6l-4.6 4.6l-4.6 -4.6z",
    "M0 -4.4l4.4 8h-8.8z",
)


class Scale(Struct, frozen=True, omit_defaults=True):
    """label: name and unit. factor: that shown values are divided by, in that unit. log: of values above zero. high:
    where it ends if it is fixed; then it begins at zero."""

    label: str
    unit: str = ""
    factor: float = 1.0
    log: bool = False
    high: float | None = None


class Point(Struct, frozen=True, omit_defaults=True):
    """name: its meaning. hollow, crossed: saturated and invalid, as the caption explains."""

    x: float
    y: float
    name: str
    hollow: bool = False
    crossed: bool = False


class Series(Struct, frozen=True, omit_defaults=True):
    """colour: a class of the palette. dash: of a line. values: as many as xs; None: no value. low, high: of a band or a
    whisker around each value. points: in place of values; mark: their shape."""

    name: str
    colour: str
    dash: list[int] = []
    values: list[float | None] = []
    low: list[float | None] = []
    high: list[float | None] = []
    points: list[Point] = []
    mark: str = ""


class Plot(Struct, frozen=True, omit_defaults=True):
    """xs: rising. names: of columns and groups, which have no xs. labels: above each column. limit: a line across.
    stepped: whether values of lines hold up to the next x."""

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
    """An entry of a legend."""

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
    """description: the caption. table: its values, or their summary."""

    kind: ClassVar[str] = "chart"
    title: str
    description: str
    plot: Plot
    keys: tuple[Key, ...]
    table: ValueTable


def series_class(index: int) -> str:
    return f"s{index % SERIES + 1}"


def dash_of(colour: str) -> list[int]:
    """Return the dashes of a series' line."""
    return [int(length) for length in DASHES[int(colour[1:]) - 1].split()]


def scale(greatest: float, name: str, unit: str = "", log: bool = False, high: float | None = None) -> Scale:
    """Return a scale whose seconds are in the unit that suits the greatest value."""
    factor, unit = (0.01, "%") if unit == "share" else scale_of(greatest, unit)
    label = unit if name and unit.startswith(name) else ", ".join(filter(None, (name, unit)))
    return Scale(label, unit, factor, log, high)


def rounded(values: Iterable[float | None]) -> list[float | None]:
    """Round values to what a pixel can show; a value that is not finite becomes None."""
    return [None if one is None or not math.isfinite(one) else float(f"{one:.4g}") for one in values]


def rounded_xs(values: Iterable[float]) -> list[float]:
    """Round values of the x axis, where small differences of large values matter."""
    return [float(f"{one:.7g}") for one in values]
