"""The page of a report: what was run, the figures, what they say, and the pictures.

Knows the order of things, what must be known before a figure is believed, and which columns (settings at a load) are
drawn together; tables and pictures are made elsewhere, and templates lay them out. A section that has nothing to show
is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from inflight.counted import counted
from inflight.report.charts.quantity import quantity
from inflight.report.columns import Column, by_load, columns_of
from inflight.report.diagnosis import Diagnosis, Finding
from inflight.report.draft_pictures import draft_pictures
from inflight.report.page import tables, templating
from inflight.report.page.views import (
    BatchView,
    Figure,
    FiguresShown,
    FiguresView,
    PageView,
    Part,
    RunView,
    Section,
    Table,
    TablesView,
    View,
)
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
from inflight.report.run import Report, Setting, groups_of
from inflight.report.steps.engine_run import EngineRun

_ALIKE = 5  # times the shortest run that the longest may last, to be drawn on one axis
_SPREAD = 7  # columns whose lines can be told apart
_OPEN = 4  # folded parts that are open at first


def render(report: Report) -> str:
    """A whole HTML page."""
    columns = columns_of(report)
    return templating.page(
        PageView(report.title, report.about, list(_notes(columns)), list(_sections(report, columns)))
    )


def _sections(report: Report, columns: Sequence[Column]) -> Iterator[Section]:
    figures = ("figures", "Figures", _figures(columns))
    latency = ("latency", "Latency and throughput", _latency(report, columns))
    found: list[tuple[str, str, View | None]] = [
        ("run", "What was run", _what_was_run(report.settings)),
        # One setting is read by its figures; several are seen side by side before they are looked up.
        *((figures,) if len(columns) == 1 else (latency, figures)),
        ("diagnosis", "Diagnosis", _diagnoses(columns)),
        ("groups", "Lanes, tenants, classes", _groups(columns)),
        *((latency,) if len(columns) == 1 else ()),
        ("batch", "Batch, memory, queue", _batches(columns)),
        ("slowest", "Slowest requests", _slowest(columns)),
    ]
    return (Section(place, title, view) for place, title, view in found if view)


def _notes(columns: Sequence[Column]) -> Iterator[str]:
    """What must be known before a figure is believed."""
    for column in columns:
        name = f"{column.name}: " if len(columns) > 1 else ""
        if not column.valid:
            yield f"{name}This run is not valid; its figures are struck out."
        yield from (f"{name}{note}" for note in column.notes)
        if column.saturated:
            rate = quantity(column.runs[0].summary.requests_per_s, "requests/s")
            yield (
                f"{name}Saturated at {rate}: latency was still growing when the run ended, so that percentiles would "
                "tell how long the run was; there are none."
            )


def _which_run(column: Column) -> str:
    """Said above what is shown of the first repeat only."""
    return f"Run 1 of {len(column.runs)}." if len(column.runs) > 1 else ""


# -- words and figures ------------------------------------------------------------------------------------------


def _what_was_run(settings: Sequence[Setting]) -> RunView:
    given = [setting for setting in settings if setting.options]
    options = [Part(tables.options(one), one.name if len(given) > 1 else "") for one in given]
    differing = tables.differing_options(settings) if len(settings) > 1 else None
    return RunView([(setting.name, _details(setting)) for setting in settings], differing, options)


def _details(setting: Setting) -> str:
    options = setting.options
    chosen = [f"{key} {options[key].value}" for key in ("model", "strategy", "policy") if key in options]
    runs = f"{len(setting.runs)} runs" if len(setting.runs) > 1 else ""
    loads = f"{len(setting.loads)} loads" if len(setting.loads) > 1 else setting.loads[0]
    recorded = f"recorded {setting.created}" if setting.created else ""
    return ", ".join(one for one in (setting.about, *chosen, loads, runs, recorded) if one)


def _figures(columns: Sequence[Column]) -> FiguresView:
    if len(columns) == 1:
        return FiguresView(tiles=tables.tiles(columns[0]), cards=tables.one_setting(columns[0]))
    note = "Below a value: its 95 % interval"
    if any(column.baseline is not None for column in columns):
        note += (
            ", and the difference from the first setting at the same load, paired repeat by repeat. ▲ better, ▼ worse; "
            "without a sign, the interval holds no difference"
        )
    loads = by_load(columns)
    if len(loads) == 1 or len(loads) == len(columns):
        return FiguresView(f"{note}.", groups=[Part(tables.several_settings(columns))])
    last = list(loads)[-1]
    groups = [
        Part(tables.several_settings(some), load or "one load", opened=load == last) for load, some in loads.items()
    ]
    return FiguresView(f"{note}.", groups=groups)


def _diagnoses(columns: Sequence[Column]) -> list[Part[Diagnosis]]:
    if len(columns) == 1:
        return [Part(columns[0].diagnosis)]
    return [
        Part(one.diagnosis, f"{one.name}: {_number(one.diagnosis.findings)}", opened=index < _OPEN)
        for index, one in enumerate(columns)
    ]


def _number(findings: Sequence[Finding]) -> str:
    return "nothing stands out" if not findings else counted(len(findings), "finding")


def _groups(columns: Sequence[Column]) -> list[Part[Table]]:
    """Figures of the lanes, tenants and classes apart, where there are several."""
    found = [(column, some) for column in columns if (some := groups_of(column.runs[0]))]
    return [
        Part(tables.by_group(some), column.name if len(found) > 1 else "", index < _OPEN, _which_run(column))
        for index, (column, some) in enumerate(found)
    ]


def _slowest(columns: Sequence[Column]) -> TablesView | None:
    shown = [(column, table) for column in columns if (table := tables.slowest(column.runs[0])) is not None]
    parts = [Part(table, column.name if len(columns) > 1 else "", note=_which_run(column)) for column, table in shown]
    about = f"The {tables.SLOWEST} completed requests with the longest E2E."
    return TablesView(about, parts) if parts else None


# -- pictures ---------------------------------------------------------------------------------------------------


def _latency(report: Report, columns: Sequence[Column]) -> FiguresShown | None:
    """Curves over all loads; distributions of settings side by side at one of them."""
    shown = _drawn_together(columns)
    curves = throughput_latency(report.settings)
    names = [column.name if len({one.load for one in shown}) > 1 else column.setting.name for column in shown]
    named = list(zip(names, shown, strict=True))
    spread = latency_spread([(name, column.runs[0]) for name, column in named if not column.saturated])
    spent = time_spent([(name, engine) for name, column in named if (engine := column.figures[0].engine) is not None])
    alone = [ttft_over_time(shown[0].runs[0]), *run_over_time(shown[0].runs[0])] if len(columns) == 1 else []
    sentences = []
    if len(shown) < len(columns):
        sentences.append(f"Distributions: of {'; '.join(column.name for column in shown)}.")
    if any(len(column.runs) > 1 for column in shown):
        sentences.append("Of repeats, the first is drawn; the tables have them all.")
    figures = _known((*curves, *spread, spent, *alone))
    return FiguresShown(" ".join(sentences), figures) if figures else None


def _known(figures: Iterable[Figure | None]) -> list[Figure]:
    return [one for one in figures if one is not None]


def _drawn_together(columns: Sequence[Column]) -> list[Column]:
    """Loads of a single setting; else settings at the highest load that none of them was saturated by, or the first;
    what is not valid only where nothing is."""
    columns = [column for column in columns if column.valid] or columns
    loads = list(by_load(columns).values())
    if len({column.setting.name for column in columns}) == 1:
        return list(columns[:_SPREAD])
    calm = [together for together in loads if not any(column.saturated for column in together)]
    return (calm[-1] if calm else loads[0])[:_SPREAD]


def _batches(columns: Sequence[Column]) -> list[Part[BatchView]]:
    recorded = [
        (column, engine) for column in columns if (engine := column.runs[0].engine) is not None and engine.steps
    ]
    if not recorded:
        return []
    seconds = _axis([engine for _, engine in recorded])
    opened = {column.name for column in _drawn_together([column for column, _ in recorded])}
    return [
        Part(
            _batch(engine, seconds),
            column.name if len(columns) > 1 else "",
            column.name in opened,
            _which_run(column),
        )
        for column, engine in recorded
    ]


def _axis(engines: Sequence[EngineRun]) -> float:
    """Seconds that all pictures of the batch show, so that they compare; 0 where one would be lost in that."""
    lengths = [engine.steps.end - engine.steps.start for engine in engines]
    return max(lengths) if max(lengths) < _ALIKE * min(lengths) else 0.0


def _batch(engine: EngineRun, seconds: float) -> BatchView:
    small = (
        kv_by_owner(engine),
        queue_over_time(engine),
        tokens_per_step(engine),
        step_seconds(engine),
        *draft_pictures(engine),
        service_over_time(engine),
    )
    return BatchView(_known((*batch_over_time(engine, seconds), requests_over_time(engine, seconds))), _known(small))
