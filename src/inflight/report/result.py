"""A report as text for a terminal, and as typed data for programs: figures in seconds, tokens, shares and rates."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType, convert, to_builtins

from inflight.report.charts.quantity import quantity
from inflight.report.columns import Column, by_load, catalogue, columns_of
from inflight.report.rendering import render
from inflight.report.run import Report

Interval = tuple[float | None, float | None]


class Ratio(Struct):
    """A ratio to the first setting at the same load."""

    mean: float
    interval: Interval


class FigureResult(Struct):
    """interval: 95 %, of the mean over repeats where there are several, else of the percentile."""

    value: float
    unit: str
    interval: Interval
    samples: int
    ratio: Ratio | UnsetType = UNSET


class FindingResult(Struct):
    title: str
    figures: str
    cause: str
    change: str


class ColumnResult(Struct):
    name: str
    setting: str
    about: str
    load: str
    repeats: int
    valid: bool
    saturated: bool
    notes: list[str]
    figures: dict[str, FigureResult]
    findings: list[FindingResult]


class ReportResult(Struct):
    title: str
    columns: list[ColumnResult]


def report_result(report: Report) -> ReportResult:
    return ReportResult(report.title, [_column(column) for column in columns_of(report)])


def as_json(report: Report) -> dict[str, Any]:
    """Return the data of a report as `--json` prints it."""
    data: dict[str, Any] = to_builtins(report_result(report))
    return data


def as_text(report: Report) -> str:
    columns = columns_of(report)
    loads = by_load(columns)
    one_table = len(report.settings) == 1 or len(loads) == 1
    tables = [("", columns, [column.name for column in columns])]
    if not one_table:
        tables = [(load or "one load", some, [one.setting.name for one in some]) for load, some in loads.items()]
    return render("report", report=report, columns=columns, tables=tables, catalogue=catalogue, value=_value)


def _value(column: Column, key: str) -> str:
    figure, mean = column.figure(key), column.mean(key)
    return quantity(None if figure is None or mean is None else mean.mean, "" if figure is None else figure.unit)


def _column(column: Column) -> ColumnResult:
    return ColumnResult(
        name=column.name,
        setting=column.setting.name,
        about=column.setting.about,
        load=column.load,
        repeats=len(column.runs),
        valid=column.valid,
        saturated=column.saturated,
        notes=column.notes,
        figures=_figures(column),
        findings=convert(column.diagnosis.findings, list[FindingResult], from_attributes=True),
    )


def _figures(column: Column) -> dict[str, FigureResult]:
    found: dict[str, FigureResult] = {}
    for one in (figure for group in catalogue([column]).values() for figure in group):
        mean, ratio = column.mean(one.key), column.ratio(one.key)
        if mean is None:
            continue
        interval = (mean.low, mean.high) if mean.repeats > 1 else one.interval or (None, None)
        found[one.key] = FigureResult(mean.mean, one.unit, interval, one.samples)
        if ratio is not None:
            found[one.key].ratio = Ratio(ratio.mean, (ratio.low, ratio.high))
    return found
