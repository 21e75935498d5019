"""The parts of a page: figures, diagnosis, pictures of latency and of the batch, slowest requests.

Knows columns (settings at a load) and which of them are drawn together; tables and pictures are made elsewhere. Each
gives HTML, or "" where it has nothing to show.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from inflight.report.charts.drawing import Drawing
from inflight.report.columns import Column, by_load
from inflight.report.diagnosis import Diagnosis, Finding
from inflight.report.page import tables
from inflight.report.page.html import element, figure, fold, grid, words
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


def figures(columns: Sequence[Column]) -> str:
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


def diagnoses(columns: Sequence[Column]) -> str:
    if len(columns) == 1:
        return _diagnosis(columns[0].diagnosis)
    return "".join(
        fold(f"{one.name}: {_number(one.diagnosis.findings)}", _diagnosis(one.diagnosis), opened=index < _OPEN)
        for index, one in enumerate(columns)
    )


def groups(columns: Sequence[Column]) -> str:
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
    return "nothing stands out" if not findings else f"{len(findings)} finding{'s' if len(findings) > 1 else ''}"


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


def latency(report: Report, columns: Sequence[Column]) -> str:
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


def batches(columns: Sequence[Column]) -> str:
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
        service_over_time(engine),
    )
    wide: list[Drawing | None] = [*batch_over_time(engine, seconds), requests_over_time(engine, seconds)]
    above = "".join(figure(one) for one in wide if one is not None)
    return _which_run(column) + above + grid(*(figure(one) for one in small if one is not None))


def slowest(columns: Sequence[Column]) -> str:
    found = []
    for column in columns:
        shown = tables.slowest(column.runs[0])
        if shown:
            shown = _which_run(column) + shown
            found.append(shown if len(columns) == 1 else fold(column.name, shown))
    about = f"The {tables.SLOWEST} completed requests with the longest E2E."
    return element("p", about, class_="about") + "".join(found) if found else ""
