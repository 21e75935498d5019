"""A report as text for a terminal, and as data for programs. Knows figures and findings; draws nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inflight.report.charts.quantity import MISSING, quantity
from inflight.report.columns import Column, by_load, catalogue, columns_of
from inflight.report.run import Report

_NAME = 30


def as_text(report: Report) -> str:
    columns = columns_of(report)
    lines = [report.title, *(f"{setting.name}: {setting.about}" for setting in report.settings if setting.about), ""]
    for column in columns:
        lines += [f"! {_prefix(column, columns)}{note}" for note in column.notes]
        if not column.valid:
            lines.append(f"! {_prefix(column, columns)}This run is not valid: do not believe its figures.")
    loads = by_load(columns)
    if len(report.settings) == 1 or len(loads) == 1:
        lines += _table(columns, [column.name for column in columns])
    else:
        for load, together in loads.items():
            lines += [
                "",
                f"── {load or 'one load'} ──",
                *_table(together, [column.setting.name for column in together]),
            ]
    diagnoses = (line for column in columns for line in _diagnosis(column, len(columns) > 1))
    return "\n".join([*lines, "", "Diagnosis", *diagnoses]) + "\n"


def _table(columns: Sequence[Column], names: Sequence[str]) -> list[str]:
    lines = []
    width = max([16, *(len(name) + 2 for name in names)])
    for group, figures in catalogue(columns).items():
        head = "".join(f"{name:>{width}}" for name in names) if len(columns) > 1 else ""
        lines += ["", f"{group:<{_NAME}}{head}"]
        for one in figures:
            cells = "".join(f"{_value(column, one.key):>{width}}" for column in columns)
            samples = f"   over {one.samples:,} samples" if one.samples and len(columns) == 1 else ""
            lines.append(f"  {one.name:<{_NAME - 2}}{cells}{samples}")
    return lines


def as_json(report: Report) -> dict[str, Any]:
    """Figures by key, in seconds, tokens, shares and rates; intervals are 95 %."""
    return {
        "title": report.title,
        "columns": [
            {
                "name": column.name,
                "setting": column.setting.name,
                "about": column.setting.about,
                "load": column.load,
                "repeats": len(column.runs),
                "valid": column.valid,
                "saturated": column.saturated,
                "notes": column.notes,
                "figures": _figures(column),
                "findings": [
                    {"title": one.title, "figures": one.figures, "cause": one.cause, "change": one.change}
                    for one in column.diagnosis.findings
                ],
            }
            for column in columns_of(report)
        ],
    }


def _figures(column: Column) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for group in catalogue([column]).values():
        for one in group:
            mean, ratio = column.mean(one.key), column.ratio(one.key)
            if mean is None:
                continue
            low, high = (mean.low, mean.high) if mean.repeats > 1 else one.interval or (None, None)
            found[one.key] = {"value": mean.mean, "unit": one.unit, "interval": [low, high], "samples": one.samples}
            if ratio is not None:
                found[one.key]["ratio"] = {"mean": ratio.mean, "interval": [ratio.low, ratio.high]}
    return found


def _diagnosis(column: Column, named: bool) -> list[str]:
    diagnosis, lines = column.diagnosis, [f"  {column.name}"] if named else []
    if not diagnosis.findings:
        return [*lines, f"  Nothing stands out. Looked at: {diagnosis.looked_at}"]
    for one in diagnosis.findings:
        lines += [f"  - {one.title}. {one.figures}", f"    {one.cause}", f"    → {one.change}"]
    return lines


def _value(column: Column, key: str) -> str:
    figure, mean = column.figure(key), column.mean(key)
    return MISSING if figure is None or mean is None else quantity(mean.mean, figure.unit)


def _prefix(column: Column, columns: Sequence[Column]) -> str:
    return f"{column.name}: " if len(columns) > 1 else ""
