"""Tables of a page as text in cells: figures of one setting or of several, settings with reasons, the slowest
requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from inflight.metrics.confidence import Estimate
from inflight.metrics.observation import Observation
from inflight.metrics.summary import Summary
from inflight.report.charts.quantity import MISSING, digits, quantity, shortened
from inflight.report.columns import Column, catalogue
from inflight.report.engine_figures import PARTS
from inflight.report.figures import LATENCIES, Figure
from inflight.report.page.views import Below, Cell, Table
from inflight.report.run import Option, Run, Setting
from inflight.report.steps.engine_run import EndedRequest

SLOWEST = 15
_IN_CELLS = ("s", "share", "")  # units beside values; others, which never change, are beside names
_TILES = {
    "output_tokens_per_s": "output",
    "requests_per_s": "requests",
    "goodput": "goodput",
    "ttft_p50": "TTFT p50",
    "ttft_p99": "TTFT p99",
    "itl_p50": "ITL p50",
    "itl_p99": "ITL p99",
    "e2e_p99": "E2E p99",
    "occupancy": "batch occupancy",
    "preemptions": "preemptions",
}


def tiles(column: Column) -> list[tuple[str, str]]:
    """Return values and names of the main figures; throughput and latency side by side."""
    shown = ((name, column.figure(key), column.mean(key)) for key, name in _TILES.items())
    return [
        (quantity(mean.mean, figure.unit).replace("requests/s", "req/s").replace("tokens/s", "tok/s"), name)
        for name, figure, mean in shown
        if figure is not None and mean is not None
    ]


def one_setting(column: Column) -> list[Table]:
    """Return a card for each group of figures; latencies, with a column for each percentile, first."""
    cards: list[Table] = []
    for group, figures in catalogue([column]).items():
        if group == "Latency":
            cards.insert(0, _latency(column))
            continue
        rows = tuple((_named(one), _cell(column, one.key)) for one in figures)
        cards.append(Table(("", "value"), rows, title=group))
    return cards


def _latency(column: Column) -> Table:
    levels = ("mean", "p50", "p95", "p99")
    rows = []
    for key, name, about in (*LATENCIES, ("delay", "schedule delay", "actual send − intended send")):
        first = column.figure(f"{key}_mean")
        if first is not None:
            named = Cell(name, (Below((f"{about}; {first.samples:,} samples",)),))
            rows.append((named, *(_cell(column, f"{key}_{level}") for level in levels)))
    return Table(("", *levels), tuple(rows), title="Latency", wide=True)


def several_settings(columns: Sequence[Column]) -> list[Table]:
    """Return a column for each; below a value, how it compares with the first setting at this load."""
    found = []
    one_load = len({column.load for column in columns}) == 1
    for group, figures in catalogue(columns).items():
        head = (group, *(column.setting.name if one_load else column.name for column in columns))
        rows, shown = [], ""
        for one in figures:
            named = _named(one if one.about != shown else replace(one, about=""))
            rows.append((named, *(_cell(column, one.key) for column in columns)))
            shown = one.about
        found.append(Table(head, tuple(rows), "several"))
    return found


def _named(figure: Figure) -> Cell:
    name = figure.name if figure.unit in _IN_CELLS else f"{figure.name}, {figure.unit}"
    if figure.unit.startswith(figure.name):
        name = figure.unit  # requests/s
    elif figure.unit and figure.unit in figure.name:
        name = figure.name  # tokens recomputed
    return Cell(name, (Below((figure.about,)),) if figure.about else ())


def _cell(column: Column, key: str) -> Cell:
    figure, mean = column.figure(key), column.mean(key)
    if figure is None or mean is None:
        return Cell(MISSING)
    below = (*_interval(figure, mean), *_ratio(figure, column.ratio(key)))
    return Cell(_plain(mean.mean, figure), below, struck=not column.valid)


def _plain(value: float, figure: Figure) -> str:
    return quantity(value, figure.unit if figure.unit in _IN_CELLS else "")


def _interval(figure: Figure, mean: Estimate) -> tuple[Below, ...]:
    """Return the interval of the mean over repeats where there are several, else of the percentile."""
    low, high = (mean.low, mean.high) if mean.repeats > 1 else figure.interval or (None, None)
    if low is None or high is None:
        return ()
    low, high = max(0.0, low), min(1.0, high) if figure.unit == "share" else high
    if high == low or high - low < 1e-9 * abs(high):
        return ()
    return (Below((f"{_plain(low, figure)} …", _plain(high, figure))),)


def _ratio(figure: Figure, ratio: Estimate | None) -> tuple[Below, ...]:
    """Return the difference from the first setting; coloured, and with a sign, only where the interval excludes
    none."""
    if ratio is None or not figure.better or ratio.mean == 1.0:
        return ()
    change = _percent(ratio.mean, 1) + " %" if ratio.mean < 10 else f"× {digits(ratio.mean)}"
    ends = []
    if ratio.low is not None and ratio.high is not None:
        ends = [f"({_percent(ratio.low, 0)} … {_percent(ratio.high, 0)})"]
        if ratio.high >= 10:
            ends = [f"(× {digits(ratio.low)} … {digits(ratio.high)})"]
    if not ratio.differs:
        return (Below((change, *ends)),)
    if (ratio.mean > 1) == (figure.better == "higher"):
        return (Below((f"▲ {change}", *ends), "good", "better"),)
    return (Below((f"▼ {change}", *ends), "bad", "worse"),)


def _percent(ratio: float, places: int) -> str:
    return f"{(ratio - 1) * 100:+.{places}f}".replace("-", "−")


def options(setting: Setting) -> Table:
    rows = tuple((Cell(name), Cell(_shown(one), code=True), Cell(one.reason)) for name, one in setting.options.items())
    return Table(("setting", "value", "why"), rows, "words")


def differing_options(settings: Sequence[Setting]) -> Table | None:
    """Return the options that are not the same in all; None where there are none."""
    names = list(dict.fromkeys(name for setting in settings for name in setting.options))
    every = ((name, [_shown(setting.options.get(name)) for setting in settings]) for name in names)
    rows = tuple((Cell(name), *(Cell(one, code=True) for one in all_)) for name, all_ in every if len(set(all_)) > 1)
    return Table(("setting", *(setting.name for setting in settings)), rows) if rows else None


def _shown(option: Option | None) -> str:
    return MISSING if option is None else str(option.value)


def by_group(groups: Mapping[str, Summary]) -> Table:
    """Return throughput and latency of each lane, tenant and class."""
    head = ("", "offered", "completed", "attainment", "goodput, requests/s", "output, tokens/s")
    rows = []
    for name, one in groups.items():
        latencies = (one.ttft.p50, one.ttft.p99, one.itl.p50, one.itl.p99, one.e2e.p99)
        shown = ["growing"] * 5 if one.saturated else [quantity(value, "s") for value in latencies]
        counts = (f"{one.offered:,}", f"{one.requests:,}", quantity(one.attainment, "share"))
        rates = (quantity(one.goodput), quantity(one.output_tokens_per_s))
        rows.append(tuple(map(Cell, (name, *counts, *rates, *shown))))
    return Table((*head, "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "E2E p99"), tuple(rows))


def slowest(run: Run) -> Table | None:
    """Return the requests with the longest E2E, and where their time went; None where none was completed."""
    done = sorted((one for one in run.observations if one.outcome == "completed"), key=lambda one: -one.e2e)[:SLOWEST]
    if not done:
        return None
    ids = {one.request_id for one in done}
    ended = run.engine.requests if run.engine is not None else ()
    requests = {one.request_id: one for one in ended if one.request_id in ids}
    spent = ("queue", "waited most for", "prefill", "decode", "preempted", "other") if requests else ()
    head = ("request", "E2E", "TTFT", "longest gap", *spent, "prompt", "output", "lane, tenant")
    rows = tuple(_request(one, requests.get(one.request_id), bool(requests)) for one in done)
    return Table(head, rows, "requests")


def _request(one: Observation, request: EndedRequest | None, has_steps: bool) -> tuple[Cell, ...]:
    who = ", ".join(part for part in (one.lane or one.traffic, one.tenant) if part) or MISSING
    short = shortened(one.request_id)
    name = Cell(short, whole=one.request_id if short != one.request_id else "")
    seconds = (quantity(value, "s") for value in (one.e2e, one.ttft, max(one.gaps, default=None)))
    spent = (_time_spent(request) if request is not None else [MISSING] * 6) if has_steps else []
    cached = (Below((f"{one.cached_tokens:,} cached",)),) if one.cached_tokens else ()
    prompt = Cell(f"{one.prompt_tokens:,}", cached)
    return (name, *map(Cell, (*seconds, *spent)), prompt, Cell(f"{one.output_tokens:,}"), Cell(who))


def _time_spent(request: EndedRequest) -> list[str]:
    timings = request.timings
    by = timings.queued_by if timings.queue_ms else {}
    reason = max(by, key=lambda name: by[name], default=MISSING)
    queue, *others = (quantity(getattr(timings, key) / 1e3, "s") for key in PARTS.values())
    return [queue, reason, *others]
