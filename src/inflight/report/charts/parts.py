"""Lying bars of parts that make a whole, as where requests' time went: a bar for every name, drawn by the page without
a script, and the same as a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from inflight.report.charts.chart import Key, ValueTable
from inflight.report.charts.quantity import quantity

Part = tuple[str, float, str]  # name, value, class
_SEEN = 0.002  # of the greatest bar: less is no part of the legend


@dataclass(frozen=True, slots=True)
class Bar:
    """parts: class, beginning and length of each in percent of the longest bar, and what it is in words."""

    name: str
    total: str
    parts: tuple[tuple[str, float, float, str], ...]


@dataclass(frozen=True, slots=True)
class PartBars:
    kind: ClassVar[str] = "parts"
    title: str
    description: str
    bars: tuple[Bar, ...]
    keys: tuple[Key, ...]
    table: ValueTable


def part_bars(title: str, about: str, named: Sequence[tuple[str, Sequence[Part]]], unit: str) -> PartBars | None:
    """A bar for every name, of its parts in their order. None where there is nothing to show."""
    greatest = max((sum(value for _, value, _ in parts) for _, parts in named), default=0.0)
    if greatest <= 0:
        return None
    keys = {
        name: Key(name, class_, "area")
        for _, parts in named
        for name, value, class_ in parts
        if value > _SEEN * greatest
    }
    bars = tuple(_bar(name, parts, greatest, unit) for name, parts in named)
    values = [{part: value for part, value, _ in parts} for _, parts in named]
    rows = tuple((part, *(quantity(of.get(part, 0.0), unit) for of in values)) for part in keys)
    table = ValueTable(("", *(name for name, _ in named)), rows)
    return PartBars(title, about, bars, tuple(keys.values()), table)


def _bar(name: str, parts: Sequence[Part], greatest: float, unit: str) -> Bar:
    drawn, done = [], 0.0
    for part, value, class_ in parts:
        if value > 0:
            said = f"{part}: {quantity(value, unit)}"
            drawn.append((class_, round(100 * done / greatest, 2), round(100 * value / greatest, 2), said))
        done += value
    return Bar(name, quantity(done, unit), tuple(drawn))
