"""Histograms: a column for each number from the least to the greatest, of parts that lie on each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inflight.report.charts.chart import Chart, Key, Plot, Series, ValueTable, rounded, scale
from inflight.report.charts.quantity import quantity


class Column(NamedTuple):
    """name: below it. parts: values from the bottom up, as many as keys. label: above it, where there is room."""

    name: str
    parts: Sequence[float]
    label: str


def histogram(
    title: str, about: str, columns: Sequence[Column], keys: Sequence[Key], x: str, y: tuple[str, str]
) -> Chart | None:
    """keys: name and class of each part; one alone has no legend. x: what the columns' names are. y: name and unit of
    the values. None where there is nothing to show."""
    greatest = max((sum(column.parts) for column in columns), default=0.0)
    if greatest <= 0:
        return None
    series = [
        Series(key.name, key.class_, values=rounded(column.parts[place] for column in columns))
        for place, key in enumerate(keys)
    ]
    names, labels = [column.name for column in columns], [column.label for column in columns]
    plot = Plot("columns", scale(0.0, x), scale(greatest, *y), series, names=names, labels=labels)
    rows = [(one.name, *(quantity(value, y[1]) for value in one.parts), one.label) for one in columns]
    has_labels = any(labels) and len(keys) > 1
    head = (x, *(key.name for key in keys), *(("above it",) if has_labels else ()))
    table = ValueTable(head, tuple(row if has_labels else row[:-1] for row in rows))
    return Chart(title, about, plot, tuple(keys) if len(keys) > 1 else (), table)
