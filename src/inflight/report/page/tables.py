"""Tables: figures of one setting or of several, settings with their reasons, the slowest requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from inflight.metrics.confidence import Estimate
from inflight.metrics.observation import Observation
from inflight.metrics.summary import Summary
from inflight.report.charts.quantity import MISSING, digits, quantity
from inflight.report.columns import Column, catalogue
from inflight.report.engine_figures import PARTS
from inflight.report.figures import LATENCIES, Figure
from inflight.report.page.html import element, grid, identifier, table, words
from inflight.report.run import Option, Run, Setting
from inflight.report.steps.engine_run import EndedRequest

SLOWEST = 15
_IN_CELLS = ("s", "share", "")


def tiles(column: Column) -> str:
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
    found = []
    for key, name in wanted:
        figure, mean = column.figure(key), column.mean(key)
        if figure is not None and mean is not None:
            found.append(
                element("div", element("b", words(_short(mean.mean, figure))), element("span", name), class_="tile")
            )
    return element("div", *found, class_="tiles")


def _short(value: float, figure: Figure) -> str:
    return quantity(value, figure.unit).replace("requests/s", "req/s").replace("tokens/s", "tok/s")


def one_setting(column: Column) -> str:
    """A card for each group, so that all is seen at once."""
    cards: list[str] = []
    groups = catalogue([column])
    for group, figures in groups.items():
        if group == "Latency":
            cards.insert(0, _card(group, _latency(column), "figures wide"))
            continue
        rows = [[_named(one), _cell(column, one.key)] for one in figures]
        cards.append(_card(group, table(["", "value"], rows)))
    return grid(*cards)


def _latency(column: Column) -> str:
    """A row for each kind, a column for each percentile."""
    rows = []
    for key, name, about in (*LATENCIES, ("delay", "schedule delay", "actual send − intended send")):
        first = column.figure(f"{key}_mean")
        if first is None:
            continue
        said = f"{words(name)}<small>{words(about)}; {first.samples:,} samples</small>"
        rows.append([said, *(_cell(column, f"{key}_{level}") for level in ("mean", "p50", "p95", "p99"))])
    return table(["", "mean", "p50", "p95", "p99"], rows)


def several_settings(columns: Sequence[Column]) -> str:
    """A column for each; below a value, how it compares with the first setting at this load."""
    parts = []
    one_load = len({column.load for column in columns}) == 1
    for group, figures in catalogue(columns).items():
        head = [words(group), *(words(column.setting.name if one_load else column.name) for column in columns)]
        rows, said = [], ""
        for one in figures:
            shown = one if one.about != said else replace(one, about="")
            rows.append([_named(shown), *(_cell(column, one.key) for column in columns)])
            said = one.about
        parts.append(element("div", table(head, rows, "several"), class_="figures", style="margin-bottom:18px"))
    return "".join(parts)


def _card(title: str, content: str, class_: str = "figures") -> str:
    return element("div", element("h3", words(title)), content, class_=class_)


def _plain(value: float, figure: Figure) -> str:
    """Units that never change stand beside the name."""
    return quantity(value, figure.unit if figure.unit in _IN_CELLS else "")


def _named(figure: Figure) -> str:
    name = figure.name if figure.unit in _IN_CELLS else f"{figure.name}, {figure.unit}"
    if figure.unit.startswith(figure.name):
        name = figure.unit  # requests/s
    elif figure.unit and figure.unit in figure.name:
        name = figure.name  # tokens recomputed
    return words(name) + (f"<small>{words(figure.about)}</small>" if figure.about else "")


def _cell(column: Column, key: str) -> str:
    figure, mean = column.figure(key), column.mean(key)
    if figure is None or mean is None:
        return MISSING
    value = words(_plain(mean.mean, figure)) if column.valid else element("s", words(_plain(mean.mean, figure)))
    return value + _interval(figure, mean) + _ratio(figure, column.ratio(key))


def _interval(figure: Figure, mean: Estimate) -> str:
    """Of the mean over repeats where there are several, else of the percentile."""
    ends = (mean.low, mean.high) if mean.repeats > 1 else figure.interval
    if ends is None or ends[0] is None or ends[1] is None:
        return ""
    low, high = max(0.0, ends[0]), min(1.0, ends[1]) if figure.unit == "share" else ends[1]
    if high - low < 1e-9 * abs(high) or high == low:
        return ""
    return _below([f"{_plain(low, figure)} …", _plain(high, figure)])


def _ratio(figure: Figure, ratio: Estimate | None) -> str:
    """In percent of the first setting; coloured, and with a sign, only where the interval says that they differ."""
    if ratio is None or not figure.better or ratio.mean == 1.0:
        return ""
    change = _percent(ratio.mean, 1) + " %" if ratio.mean < 10 else f"× {digits(ratio.mean)}"
    ends = []
    if ratio.low is not None and ratio.high is not None:
        ends = [f"({_percent(ratio.low, 0)} … {_percent(ratio.high, 0)})"]
        if ratio.high >= 10:
            ends = [f"(× {digits(ratio.low)} … {digits(ratio.high)})"]
    if not ratio.differs:
        return _below([change, *ends])
    is_good = (ratio.mean > 1) == (figure.better == "higher")
    sign, class_, title = ("▲", "good", "better") if is_good else ("▼", "bad", "worse")
    return _below([f"{sign} {change}", *ends], class_=class_, title=title)


def _below(parts: list[str], **attributes: object) -> str:
    """A line under a value, which breaks between its parts only."""
    return element("small", *(element("span", words(part)) for part in parts), **attributes)


def _percent(ratio: float, places: int) -> str:
    return f"{(ratio - 1) * 100:+.{places}f}".replace("-", "−")


# -- settings ---------------------------------------------------------------------------------------------------


def options(setting: Setting) -> str:
    rows = [
        [words(name), element("code", words(_shown(option))), words(option.reason)]
        for name, option in setting.options.items()
    ]
    return table(["setting", "value", "why"], rows, "words")


def differing_options(settings: Sequence[Setting]) -> str:
    """Those that are not the same in all; "" where there are none."""
    names = list(dict.fromkeys(name for setting in settings for name in setting.options))
    rows = []
    for name in names:
        shown = [_shown(setting.options.get(name)) for setting in settings]
        if len(set(shown)) > 1:
            rows.append([words(name), *(element("code", words(one)) for one in shown)])
    return table(["setting", *(words(setting.name) for setting in settings)], rows) if rows else ""


def _shown(option: Option | None) -> str:
    return MISSING if option is None else str(option.value)


def by_group(groups: Mapping[str, Summary]) -> str:
    """Throughput and latency of each lane, tenant and class."""
    head = ["", "offered", "completed", "attainment", "goodput, requests/s", "output, tokens/s"]
    head += ["TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "E2E p99"]
    rows = []
    for name, one in groups.items():
        latencies = (one.ttft.p50, one.ttft.p99, one.itl.p50, one.itl.p99, one.e2e.p99)
        shown = ["growing"] * 5 if one.saturated else [quantity(value, "s") for value in latencies]
        counts = [f"{one.offered:,}", f"{one.requests:,}", quantity(one.attainment, "share")]
        rates = [quantity(one.goodput), quantity(one.output_tokens_per_s)]
        rows.append([words(name), *counts, *rates, *shown])
    return table(head, rows)


# -- requests ---------------------------------------------------------------------------------------------------


def slowest(run: Run) -> str:
    """The requests with the longest E2E, and where their time went."""
    done = sorted((one for one in run.observations if one.outcome == "completed"), key=lambda one: -one.e2e)[:SLOWEST]
    if not done:
        return ""
    requests = {one.request_id: one for one in run.engine.requests} if run.engine is not None else {}
    head = ["request", "E2E", "TTFT", "longest gap"]
    head += ["queue", "waited most for", "prefill", "decode", "preempted", "other"] if requests else []
    head += ["prompt", "output", "lane, tenant"]
    return table(head, [_request(one, requests.get(one.request_id), bool(requests)) for one in done], "requests")


def _request(one: Observation, request: EndedRequest | None, has_steps: bool) -> list[str]:
    who = ", ".join(part for part in (one.lane or one.traffic, one.tenant) if part) or MISSING
    cached = f" <small>{one.cached_tokens:,} cached</small>" if one.cached_tokens else ""
    seconds = (one.e2e, one.ttft, max(one.gaps, default=None))
    row = [identifier(one.request_id), *(quantity(value, "s") for value in seconds)]
    if has_steps:
        row += _time_spent(request) if request is not None else [MISSING] * 6
    return [*row, f"{one.prompt_tokens:,}{cached}", f"{one.output_tokens:,}", words(who)]


def _time_spent(request: EndedRequest) -> list[str]:
    timings = request.timings
    by = timings.get("queued_by", {}) if timings["queue_ms"] else {}
    reason = max(by, key=lambda name: by[name], default=MISSING)
    queue, *others = (quantity(timings[key] / 1e3, "s") for key in PARTS.values())
    return [queue, reason, *others]
