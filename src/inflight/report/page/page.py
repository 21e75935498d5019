"""The page of a report: what was run, the figures, what they say, and the pictures.

Knows the order of things, what must be known before a figure is believed, and which columns (settings at a load) are
drawn together; tables and pictures are made elsewhere. Each part is HTML, or "" where it has nothing to show.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from inflight.counted import counted
from inflight.report.charts.palette import PATTERNS
from inflight.report.charts.quantity import quantity
from inflight.report.charts.svg import Drawing
from inflight.report.columns import Column, by_load, columns_of
from inflight.report.diagnosis import Diagnosis, Finding
from inflight.report.draft_pictures import draft_pictures
from inflight.report.page import tables
from inflight.report.page.html import STYLE, element, figure, fold, grid, section, words
from inflight.report.pictures import (
    batch_over_time,
    kv_by_owner,
    latency_spread,
    queue_over_time,
    requests_over_time,
    run_over_time,
    service_over_time,
    step_seconds,
    throughput_latency,
    time_spent,
    tokens_per_step,
    ttft_over_time,
)
from inflight.report.run import Report, groups_of
from inflight.report.steps.engine_run import EngineRun

_ALIKE = 5  # times the shortest run that the longest may last, to be drawn on one axis
_SPREAD = 7  # columns whose lines can be told apart
_OPEN = 4  # folded parts that are open at first
_OPTION = re.compile(
    r"(--[a-z][a-z0-9-]*"
    r"(?: (?:sjf|deadline|fcfs|fair|prefix|chunked|continuous|dynamic|static|adaptive|slo|auto|paged)\b)?"
    r"|\[lanes\.NAME\])"
)


def _figures(columns: Sequence[Column]) -> str:
    if len(columns) == 1:
        return tables.tiles(columns[0]) + tables.one_setting(columns[0])
    note = "Below a value: its 95 % interval"
    if any(column.baseline is not None for column in columns):
        note += (
            ", and the difference from the first setting at the same load, paired repeat by repeat. ▲ better, ▼ worse; "
            "without a sign, the interval holds no difference"
        )
    first = element("p", words(note + "."), class_="about")
    loads = by_load(columns)
    if len(loads) == 1 or len(loads) == len(columns):
        return first + tables.several_settings(columns)
    last = list(loads)[-1]
    return first + "".join(
        fold(load or "one load", tables.several_settings(together), opened=load == last)
        for load, together in loads.items()
    )


def _diagnoses(columns: Sequence[Column]) -> str:
    if len(columns) == 1:
        return _diagnosis(columns[0].diagnosis)
    return "".join(
        fold(f"{one.name}: {_number(one.diagnosis.findings)}", _diagnosis(one.diagnosis), opened=index < _OPEN)
        for index, one in enumerate(columns)
    )


def _groups(columns: Sequence[Column]) -> str:
    """Figures of the lanes, tenants and classes apart, where there are several."""
    found = [(column, some) for column in columns if (some := groups_of(column.runs[0]))]
    shown = [(column.name, _which_run(column) + tables.by_group(some)) for column, some in found]
    if len(shown) == 1:
        return shown[0][1]
    return "".join(fold(name, content, opened=index < _OPEN) for index, (name, content) in enumerate(shown))


def _which_run(column: Column) -> str:
    """Said above what is shown of the first repeat only."""
    return element("p", f"Run 1 of {len(column.runs)}.", class_="about") if len(column.runs) > 1 else ""


def _number(findings: Sequence[Finding]) -> str:
    return "nothing stands out" if not findings else counted(len(findings), "finding")


def _diagnosis(diagnosis: Diagnosis) -> str:
    if not diagnosis.findings:
        return element("p", words(f"Nothing stands out. Looked at: {diagnosis.looked_at}"))
    return "".join(
        element(
            "div",
            element("h4", words(one.title)),
            element("p", words(one.figures)),
            element("p", words(one.cause), class_="soft"),
            element("p", _options_marked(one.change)),
            class_=f"finding w{one.weight}",
        )
        for one in diagnosis.findings
    )


def _options_marked(sentence: str) -> str:
    return _OPTION.sub(r"<code>\1</code>", words(sentence))


def _latency(report: Report, columns: Sequence[Column]) -> str:
    """Curves over all loads; distributions of settings side by side at one of them."""
    shown = _drawn_together(columns)
    curves = throughput_latency(report.settings)
    names = [column.name if len({one.load for one in shown}) > 1 else column.setting.name for column in shown]
    named = list(zip(names, shown, strict=True))
    spread = latency_spread([(name, column.runs[0]) for name, column in named if not column.saturated])
    spent = time_spent([(name, engine) for name, column in named if (engine := column.figures[0].engine) is not None])
    alone = [ttft_over_time(shown[0].runs[0]), *run_over_time(shown[0].runs[0])] if len(columns) == 1 else []
    pictures = [one for one in (*curves, *spread, spent, *alone) if one is not None]
    sentences = []
    if len(shown) < len(columns):
        sentences.append(f"Distributions: of {'; '.join(column.name for column in shown)}.")
    if any(len(column.runs) > 1 for column in shown):
        sentences.append("Of repeats, the first is drawn; the tables have them all.")
    note = element("p", words(" ".join(sentences)), class_="about") if sentences else ""
    return note + grid(*map(figure, pictures))


def _drawn_together(columns: Sequence[Column]) -> list[Column]:
    """Loads of a single setting; else settings at the highest load that none of them was saturated by, or the first;
    what is not valid only where nothing is."""
    columns = [column for column in columns if column.valid] or columns
    loads = list(by_load(columns).values())
    if len({column.setting.name for column in columns}) == 1:
        return list(columns[:_SPREAD])
    calm = [together for together in loads if not any(column.saturated for column in together)]
    return (calm[-1] if calm else loads[0])[:_SPREAD]


def _batches(columns: Sequence[Column]) -> str:
    recorded = [
        (column, engine) for column in columns if (engine := column.runs[0].engine) is not None and engine.steps
    ]
    if not recorded:
        return ""
    seconds = _axis([engine for _, engine in recorded])
    if len(columns) == 1:
        return _batch(*recorded[0], seconds)
    opened = {column.name for column in _drawn_together([column for column, _ in recorded])}
    return "".join(
        fold(column.name, _batch(column, engine, seconds), opened=column.name in opened) for column, engine in recorded
    )


def _axis(engines: Sequence[EngineRun]) -> float:
    """Seconds that all pictures of the batch show, so that they compare; 0 where one would be lost in that."""
    lengths = [engine.steps.end - engine.steps.start for engine in engines]
    return max(lengths) if max(lengths) < _ALIKE * min(lengths) else 0.0


def _batch(column: Column, engine: EngineRun, seconds: float) -> str:
    small = (
        kv_by_owner(engine),
        queue_over_time(engine),
        tokens_per_step(engine),
        step_seconds(engine),
        *draft_pictures(engine),
        service_over_time(engine),
    )
    wide: list[Drawing | None] = [*batch_over_time(engine, seconds), requests_over_time(engine, seconds)]
    above = "".join(figure(one) for one in wide if one is not None)
    return _which_run(column) + above + grid(*(figure(one) for one in small if one is not None))


def _slowest(columns: Sequence[Column]) -> str:
    found = []
    for column in columns:
        shown = tables.slowest(column.runs[0])
        if shown:
            shown = _which_run(column) + shown
            found.append(shown if len(columns) == 1 else fold(column.name, shown))
    about = f"The {tables.SLOWEST} completed requests with the longest E2E."
    return element("p", about, class_="about") + "".join(found) if found else ""


def render(report: Report) -> str:
    """A whole HTML page."""
    columns = columns_of(report)
    figures = ("figures", "Figures", _figures(columns))
    latency = ("latency", "Latency and throughput", _latency(report, columns))
    sections = [
        ("run", "What was run", _what_was_run(report)),
        # One setting is read by its figures; several are seen side by side before they are looked up.
        *((figures,) if len(columns) == 1 else (latency, figures)),
        ("diagnosis", "Diagnosis", _diagnoses(columns)),
        ("groups", "Lanes, tenants, classes", _groups(columns)),
        *((latency,) if len(columns) == 1 else ()),
        ("batch", "Batch, memory, queue", _batches(columns)),
        ("slowest", "Slowest requests", _slowest(columns)),
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
