"""Tables: figures of one setting or of several, settings with their reasons, the slowest requests. As text in cells."""

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
from inflight.report.page.views import Below, Card, Cell, Table
from inflight.report.run import Option, Run, Setting
from inflight.report.steps.engine_run import EndedRequest

SLOWEST = 15
_IN_CELLS = ("s", "share", "")


def tiles(column: Column) -> list[tuple[str, str]]:
    """The few figures that are read first; throughput and latency side by side."""
    wanted = (
        ("output_tokens_per_s", "output"),
        ("requests_per_s", "requests"),
        ("goodput", "goodput"),
        ("ttft_p50", "TTFT p50"),
        ("ttft_p99", "TTFT p99"),
        ("itl_p50", "ITL p50"),
        ("itl_p99", "ITL p99"),
        ("e2e_p99", "E2E p99"),
        ("occupancy", "batch occupancy"),
        ("preemptions", "preemptions"),
    )
    shown = ((name, column.figure(key), column.mean(key)) for key, name in wanted)
    return [
        (_short(mean.mean, figure), name) for name, figure, mean in shown if figure is not None and mean is not None
    ]


def _short(value: float, figure: Figure) -> str:
    return quantity(value, figure.unit).replace("requests/s", "req/s").replace("tokens/s", "tok/s")


def one_setting(column: Column) -> list[Card]:
    """A card for each group, so that all is seen at once."""
    cards: list[Card] = []
    for group, figures in catalogue([column]).items():
        if group == "Latency":
            cards.insert(0, Card(group, _latency(column), wide=True))
            continue
        rows = tuple((_named(one), _cell(column, one.key)) for one in figures)
        cards.append(Card(group, Table(("", "value"), rows)))
    return cards


def _latency(column: Column) -> Table:
    """A row for each kind, a column for each percentile."""
    levels = ("mean", "p50", "p95", "p99")
    rows = []
    for key, name, about in (*LATENCIES, ("delay", "schedule delay", "actual send − intended send")):
        first = column.figure(f"{key}_mean")
        if first is None:
            continue
        said = Cell(name, (Below((f"{about}; {first.samples:,} samples",)),))
        rows.append((said, *(_cell(column, f"{key}_{level}") for level in levels)))
    return Table(("", *levels), tuple(rows))


def several_settings(columns: Sequence[Column]) -> list[Table]:
    """A column for each; below a value, how it compares with the first setting at this load."""
    found = []
    one_load = len({column.load for column in columns}) == 1
    for group, figures in catalogue(columns).items():
        head = (group, *(column.setting.name if one_load else column.name for column in columns))
        rows, said = [], ""
        for one in figures:
            shown = one if one.about != said else replace(one, about="")
            rows.append((_named(shown), *(_cell(column, one.key) for column in columns)))
            said = one.about
        found.append(Table(head, tuple(rows), "several"))
    return found


def _plain(value: float, figure: Figure) -> str:
    """Units that never change stand beside the name."""
    return quantity(value, figure.unit if figure.unit in _IN_CELLS else "")


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


def _interval(figure: Figure, mean: Estimate) -> tuple[Below, ...]:
    """Of the mean over repeats where there are several, else of the percentile."""
    ends = (mean.low, mean.high) if mean.repeats > 1 else figure.interval
    if ends is None or ends[0] is None or ends[1] is None:
        return ()
    low, high = max(0.0, ends[0]), min(1.0, ends[1]) if figure.unit == "share" else ends[1]
    if high - low < 1e-9 * abs(high) or high == low:
        return ()
    return (Below((f"{_plain(low, figure)} …", _plain(high, figure))),)


def _ratio(figure: Figure, ratio: Estimate | None) -> tuple[Below, ...]:
    """In percent of the first setting; coloured, and with a sign, only where the interval says that they differ."""
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


# -- settings ---------------------------------------------------------------------------------------------------


def options(setting: Setting) -> Table:
    rows = tuple(
        (Cell(name), Cell(_shown(option), code=True), Cell(option.reason)) for name, option in setting.options.items()
    )
    return Table(("setting", "value", "why"), rows, "words")


def differing_options(settings: Sequence[Setting]) -> Table | None:
    """Those that are not the same in all; None where there are none."""
    names = list(dict.fromkeys(name for setting in settings for name in setting.options))
    rows = []
    for name in names:
        shown = [_shown(setting.options.get(name)) for setting in settings]
        if len(set(shown)) > 1:
            rows.append((Cell(name), *(Cell(one, code=True) for one in shown)))
    return Table(("setting", *(setting.name for setting in settings)), tuple(rows)) if rows else None


def _shown(option: Option | None) -> str:
    return MISSING if option is None else str(option.value)


def by_group(groups: Mapping[str, Summary]) -> Table:
    """Throughput and latency of each lane, tenant and class."""
    head = ("", "offered", "completed", "attainment", "goodput, requests/s", "output, tokens/s")
    rows = []
    for name, one in groups.items():
        latencies = (one.ttft.p50, one.ttft.p99, one.itl.p50, one.itl.p99, one.e2e.p99)
        shown = ["growing"] * 5 if one.saturated else [quantity(value, "s") for value in latencies]
        counts = (f"{one.offered:,}", f"{one.requests:,}", quantity(one.attainment, "share"))
        rates = (quantity(one.goodput), quantity(one.output_tokens_per_s))
        rows.append(tuple(map(Cell, (name, *counts, *rates, *shown))))
    return Table((*head, "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "E2E p99"), tuple(rows))


# -- requests ---------------------------------------------------------------------------------------------------


def slowest(run: Run) -> Table | None:
    """The requests with the longest E2E, and where their time went; None where none was completed."""
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
