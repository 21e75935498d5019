"""The page of a report: what was run, figures, diagnosis and pictures in their order; a section without content is left
out. It is one file with its styles and its script, which loads nothing; templates escape all text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup
from msgspec import Struct

from inflight import page_policy, uplot
from inflight.counted import counted
from inflight.report.charts.palette import CHART_RULES, PAGE_VARIABLES, PATTERNS
from inflight.report.charts.quantity import quantity
from inflight.report.columns import Column, by_load, columns_of
from inflight.report.page import tables
from inflight.report.page.views import Figure, Part, Section, Table
from inflight.report.pictures import (
    batch_over_time,
    draft_pictures,
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
from inflight.report.run import Report, Setting, groups_of
from inflight.report.steps.engine_run import EngineRun

_ALIKE = 5  # times the shortest run that the longest may last, to be drawn on one axis
_SPREAD = 7  # columns whose lines can be distinguished
_OPEN = 4  # folded parts that are open at first
_FOLDER = Path(__file__).parent
_OPTION = re.compile(
    r"(--[a-z][a-z0-9-]*"
    r"(?: (?:sjf|deadline|fcfs|fair|prefix|chunked|continuous|dynamic|static|adaptive|slo|auto|paged)\b)?"
    r"|\[lanes\.NAME\])"
)
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}  # in a script element, in which HTML escapes have no effect


def render(report: Report) -> str:
    """Return a whole HTML page."""
    columns = columns_of(report)
    sections = [one for one in _sections(report, columns) if one.view]
    template = _environment().get_template("report.html")
    notes = list(_notes(columns))
    return template.render(title=report.title, about=report.about, notes=notes, sections=sections, files=_files())


def _sections(report: Report, columns: Sequence[Column]) -> list[Section]:
    figures = Section("figures", "Figures", _figures(columns))
    latency = Section("latency", "Latency and throughput", _latency(report, columns))
    diagnosis = Section("diagnosis", "Diagnosis", _parts(_diagnoses(columns)))
    one = len(columns) == 1
    return [
        Section("run", "What was run", _runs(report.settings)),
        # One setting is read by its diagnosis and figures; several are compared in charts before they are looked up.
        *((diagnosis, figures) if one else (latency, figures, diagnosis)),
        Section("groups", "Lanes, tenants, classes", _parts(_groups(columns))),
        *((latency,) if one else ()),
        Section("batch", "Batch, memory, queue", _parts(_batches(columns))),
        Section("slowest", "Slowest requests", _slowest(columns)),
    ]


def _parts(parts: Sequence[object]) -> dict[str, object]:
    return {"parts": parts} if parts else {}


def _notes(columns: Sequence[Column]) -> Iterator[str]:
    """Yield notes that a reader must know before believing a figure; one for all columns that it holds for."""
    names: dict[str, list[str]] = {}
    for column in columns:
        own = [] if column.valid else ["This run is not valid; its figures are struck out."]
        for note in (*own, *column.notes):
            names.setdefault(note, []).append(column.name)
    for note, found in names.items():
        yield note if len(columns) == 1 else f"{', '.join(found)}: {note}"
    if saturated := [column for column in columns if column.saturated]:
        yield _saturation(saturated, one=len(columns) == 1)


def _saturation(columns: Sequence[Column], *, one: bool) -> str:
    """Return the note on columns that are saturated. one: the page has no other column."""
    grown = (
        "latency was still growing when the run ended, and percentiles would measure the length of the run; there are "
        "none."
    )
    if one:
        return f"Saturated at {_rate(columns[0])}: {grown}"
    loads = (
        (f"{load}: " if load else "") + ", ".join(f"{column.setting.name} at {_rate(column)}" for column in some)
        for load, some in by_load(columns).items()
    )
    return f"Saturated. {'; '.join(loads)}. In each {grown}"


def _rate(column: Column) -> str:
    return quantity(column.runs[0].summary.requests_per_s, "requests/s")


def _which_run(column: Column) -> str:
    return f"Run 1 of {len(column.runs)}." if len(column.runs) > 1 else ""


def _known(figures: Iterable[Figure | None]) -> list[Figure]:
    return [one for one in figures if one is not None]


# -- words and figures ------------------------------------------------------------------------------------------


def _runs(settings: Sequence[Setting]) -> dict[str, object]:
    given = [setting for setting in settings if setting.options]
    return {
        "settings": [(setting.name, _details(setting)) for setting in settings],
        "differing": tables.differing_options(settings) if len(settings) > 1 else None,
        "options": [Part(tables.options(one), one.name if len(given) > 1 else "") for one in given],
    }


def _details(setting: Setting) -> str:
    options = setting.options
    chosen = [f"{key} {options[key].value}" for key in ("model", "strategy", "policy") if key in options]
    runs = f"{len(setting.runs)} runs" if len(setting.runs) > 1 else ""
    loads = f"{len(setting.loads)} loads" if len(setting.loads) > 1 else setting.loads[0]
    recorded = f"recorded {setting.created}" if setting.created else ""
    return ", ".join(one for one in (setting.about, *chosen, loads, runs, recorded) if one)


def _figures(columns: Sequence[Column]) -> dict[str, object]:
    if len(columns) == 1:
        return {"note": "", "tiles": tables.tiles(columns[0]), "cards": tables.one_setting(columns[0]), "groups": []}
    note = "Below a value: its 95 % interval"
    if any(column.baseline is not None for column in columns):
        note += (
            ", and the difference from the first setting at the same load, paired repeat by repeat. ▲ better, ▼ worse; "
            "without a sign, the interval contains no difference"
        )
    loads = by_load(columns)
    if len(loads) == 1 or len(loads) == len(columns):
        groups = [Part(tables.several_settings(columns))]
    else:
        last = list(loads)[-1]
        groups = [
            Part(tables.several_settings(some), load or "one load", opened=load == last) for load, some in loads.items()
        ]
    return {"note": f"{note}.", "tiles": [], "cards": [], "groups": groups}


def _diagnoses(columns: Sequence[Column]) -> list[Part[object]]:
    if len(columns) == 1:
        return [Part(columns[0].diagnosis)]
    numbers = (counted(number, "finding") if (number := len(one.diagnosis.findings)) else "" for one in columns)
    return [
        Part(one.diagnosis, f"{one.name}: {number or 'nothing stands out'}", opened=index < _OPEN)
        for index, (one, number) in enumerate(zip(columns, numbers, strict=True))
    ]


def _groups(columns: Sequence[Column]) -> list[Part[Table]]:
    """Return the figures of lanes, tenants and classes, where there are several."""
    found = [(column, some) for column in columns if (some := groups_of(column.runs[0]))]
    return [
        Part(tables.by_group(some), column.name if len(found) > 1 else "", index < _OPEN, _which_run(column))
        for index, (column, some) in enumerate(found)
    ]


def _slowest(columns: Sequence[Column]) -> dict[str, object]:
    shown = [(column, table) for column in columns if (table := tables.slowest(column.runs[0])) is not None]
    parts = [Part(table, column.name if len(columns) > 1 else "", note=_which_run(column)) for column, table in shown]
    return {"note": f"The {tables.SLOWEST} completed requests with the longest E2E.", "parts": parts} if parts else {}


# -- pictures ---------------------------------------------------------------------------------------------------


def _latency(report: Report, columns: Sequence[Column]) -> dict[str, object]:
    """Return curves over all loads, and distributions of settings at one of them."""
    shown = _drawn_together(columns)
    one_load = len({one.load for one in shown}) == 1
    named = [(column.setting.name if one_load else column.name, column) for column in shown]
    spread = latency_spread([(name, column.runs[0]) for name, column in named if not column.saturated])
    spent = time_spent([(name, engine) for name, column in named if (engine := column.figures[0].engine) is not None])
    alone = [ttft_over_time(shown[0].runs[0]), *run_over_time(shown[0].runs[0])] if len(columns) == 1 else []
    sentences = []
    if len(shown) < len(columns):
        sentences.append(f"Distributions: of {'; '.join(column.name for column in shown)}.")
    if any(len(column.runs) > 1 for column in shown):
        sentences.append("Of repeats, the first is drawn; the tables have them all.")
    figures = _known((*throughput_latency(report.settings), *spread, spent, *alone))
    return {"note": " ".join(sentences), "figures": figures} if figures else {}


def _drawn_together(columns: Sequence[Column]) -> list[Column]:
    """Return the columns to draw in one chart: loads of a single setting; else settings at the highest load that
    saturated none of them, or the first. Invalid runs are drawn only where all are."""
    columns = [column for column in columns if column.valid] or columns
    if len({column.setting.name for column in columns}) == 1:
        return list(columns[:_SPREAD])
    loads = list(by_load(columns).values())
    calm = [together for together in loads if not any(column.saturated for column in together)]
    return (calm[-1] if calm else loads[0])[:_SPREAD]


def _batches(columns: Sequence[Column]) -> list[Part[object]]:
    recorded = [
        (column, engine) for column in columns if (engine := column.runs[0].engine) is not None and engine.steps
    ]
    lengths = [engine.steps.end - engine.steps.start for _, engine in recorded]
    # One axis for all, so that they compare, unless a short run would be lost on it.
    seconds = max(lengths) if recorded and max(lengths) < _ALIKE * min(lengths) else 0.0
    opened = {column.name for column in _drawn_together([column for column, _ in recorded])} if recorded else set()
    return [
        Part(
            _batch(engine, seconds),
            column.name if len(columns) > 1 else "",
            column.name in opened,
            _which_run(column),
        )
        for column, engine in recorded
    ]


def _batch(engine: EngineRun, seconds: float) -> dict[str, list[Figure]]:
    small = (
        kv_by_owner(engine),
        queue_over_time(engine),
        tokens_per_step(engine),
        step_seconds(engine),
        *draft_pictures(engine),
        service_over_time(engine),
    )
    return {
        "wide": _known((*batch_over_time(engine, seconds), requests_over_time(engine, seconds))),
        "small": _known(small),
    }


# -- templates --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PageFiles:
    """policy: the page runs this script and loads nothing."""

    style: str
    script: str
    patterns: str
    policy: str


def figures_alone(title: str, figures: Sequence[Figure], columns: int = 1) -> str:
    """Return a page of figures alone, to be looked at or photographed."""
    template = _environment().get_template("figures_alone.html")
    return template.render(title=title, figures=figures, columns=columns, files=_files())


def render_page(name: str, **values: Any) -> str:
    """Return a page of a template, with the style and the script of its name beside those of charts."""
    return _environment().get_template(f"{name}.html").render(files=_files(name), **values)


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["as_json"] = _as_json
    made.filters["split_options"] = _split_options
    return made


@cache
def _files(name: str = "") -> PageFiles:
    """name: of a page with a style and a script of its own."""
    own = [_text_of(f"{name}.{kind}") if name else "" for kind in ("js", "css")]
    script = "\n".join((uplot.notice(), uplot.text_of(uplot.SCRIPT), _text_of("charts.js"), own[0]))
    style = "\n".join((PAGE_VARIABLES, _text_of("report.css"), CHART_RULES, uplot.text_of(uplot.STYLE), own[1]))
    policy = page_policy.content_security_policy(script, "'unsafe-inline'")  # lines of charts have styles of their own
    return PageFiles(style, script, PATTERNS, policy)


def _text_of(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _as_json(found: Struct) -> Markup:
    text = msgspec.json.encode(found).decode()
    for sign, escaped in _UNSAFE.items():
        text = text.replace(sign, escaped)
    return Markup(text)


def _split_options(sentence: str) -> Iterator[tuple[str, bool]]:
    """Yield pieces of the sentence, and whether each is an option."""
    return ((piece, index % 2 == 1) for index, piece in enumerate(_OPTION.split(sentence)) if piece)
