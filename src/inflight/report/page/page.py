"""The page of a report: what was run, the figures, what they say, and the pictures.

Knows the order of things, and what must be known before a figure is believed; its parts are made elsewhere.
"""

from __future__ import annotations

from inflight.report.charts.palette import PATTERNS
from inflight.report.charts.quantity import quantity
from inflight.report.columns import Column, columns_of
from inflight.report.page import parts, tables
from inflight.report.page.html import element, fold, section, words
from inflight.report.page.style import STYLE
from inflight.report.run import Report


def render(report: Report) -> str:
    """A whole HTML page."""
    columns = columns_of(report)
    figures = ("figures", "Figures", parts.figures(columns))
    latency = ("latency", "Latency and throughput", parts.latency(report, columns))
    sections = [
        ("run", "What was run", _what_was_run(report)),
        # One setting is read by its figures; several are seen side by side before they are looked up.
        *((figures,) if len(columns) == 1 else (latency, figures)),
        ("diagnosis", "Diagnosis", parts.diagnoses(columns)),
        ("groups", "Lanes, tenants, classes", parts.groups(columns)),
        *((latency,) if len(columns) == 1 else ()),
        ("batch", "Batch, memory, queue", parts.batches(columns)),
        ("slowest", "Slowest requests", parts.slowest(columns)),
    ]
    shown = [(place, name, content) for place, name, content in sections if content]
    nav = element(
        "nav", *(element("a", words(name), href=f"#{place}") for place, name, _ in shown), aria_label="Contents"
    )
    notes = [_note(column, len(columns)) for column in columns]
    head = element("header", element("h1", words(report.title)), _about(report), *notes, nav)
    body = [section(place, name, content) for place, name, content in shown]
    foot = element(
        "footer",
        "Definitions: TTFT and E2E count from the intended send time; throughput is over the measured window; "
        "percentiles say how many samples they rest on; intervals are 95 %. Made by inflight.",
    )
    defs = element("svg", PATTERNS, class_="defs", aria_hidden="true")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'{element("title", words(report.title))}<link rel="icon" href="data:,">{element("style", STYLE)}</head>\n'
        f"<body>{defs}{head}{element('main', *body)}{foot}</body></html>\n"
    )


def _about(report: Report) -> str:
    return "".join(element("p", words(sentence), class_="soft") for sentence in report.about)


def _note(column: Column, number: int) -> str:
    """What must be known before a figure is believed."""
    sentences = list(column.notes)
    if not column.valid:
        sentences.insert(0, "This run is not valid; its figures are struck out.")
    if column.saturated:
        rate = quantity(column.runs[0].summary.requests_per_s, "requests/s")
        sentences.append(
            f"Saturated at {rate}: latency was still growing when the run ended, so that percentiles would tell how "
            "long the run was; there are none."
        )
    name = f"{column.name}: " if number > 1 else ""
    return "".join(element("p", words(name + sentence), class_="note", role="note") for sentence in sentences)


def _what_was_run(report: Report) -> str:
    settings = report.settings
    parts = [_counts(report)]
    if len(settings) > 1:
        differing = tables.differing_options(settings)
        parts.append(element("h3", "Where they differ") + differing if differing else "")
    given = [setting for setting in settings if setting.options]
    titled = [element("h3", words(setting.name)) if len(given) > 1 else "" for setting in given]
    shown = [title + tables.options(setting) for title, setting in zip(titled, given, strict=True)]
    parts += [fold("All settings, with their reasons", *shown)] if shown else []
    return "".join(parts)


def _counts(report: Report) -> str:
    items = []
    for setting in report.settings:
        chosen = [
            f"{key} {setting.options[key].value}" for key in ("model", "strategy", "policy") if key in setting.options
        ]
        runs = f"{len(setting.runs)} runs" if len(setting.runs) > 1 else ""
        loads = f"{len(setting.loads)} loads" if len(setting.loads) > 1 else setting.loads[0]
        recorded = f"recorded {setting.created}" if setting.created else ""
        details = ", ".join(one for one in (setting.about, *chosen, loads, runs, recorded) if one)
        items.append(element("li", element("b", words(setting.name)), words(f": {details}" if details else "")))
    return element("ul", *items)
