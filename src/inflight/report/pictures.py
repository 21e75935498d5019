"""Which pictures and charts tell what about a run, and about several settings side by side.

Knows runs and charts; the page says where they stand.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise

from inflight.core.types.timings import QUEUE_REASONS
from inflight.metrics.definitions import Percentiles
from inflight.metrics.observation import Observation
from inflight.metrics.summary import Window
from inflight.records.computed import Work
from inflight.report.charts.batch import CLASSES, batch_picture
from inflight.report.charts.blocks import blocks_picture
from inflight.report.charts.chart import Chart, series_class
from inflight.report.charts.distribution import CurvePoint, cumulative, curve, percentile_bars
from inflight.report.charts.frame import WIDTH
from inflight.report.charts.over_time import over_time, stack
from inflight.report.charts.palette import SERIES
from inflight.report.charts.parts import Part, PartBars, part_bars
from inflight.report.charts.quantity import shortened
from inflight.report.charts.requests import Segment, request_timelines
from inflight.report.charts.svg import Drawing
from inflight.report.engine_figures import EngineFigures
from inflight.report.run import Run, Setting
from inflight.report.steps.engine_run import EngineRun
from inflight.report.steps.over_time import (
    CACHED_NAME,
    OTHERS,
    SHARED_NAME,
    block_owners,
    phases,
    running,
    service,
    waiting,
)
from inflight.report.steps.series import StepFunction, StepSeries

CLOSE_UP = 120  # steps
_PAUSE = 2.0  # in median step times: a longer idle time ends a close-up, as most of that would be empty
_EXACT = 300  # up to so many steps, a run is drawn step by step
_LIVES = 60  # requests
_MOST_OWNERS = 5
_QUEUED = {  # reason → class
    "rows": "waiting",
    "blocks": "s5",
    "budget": "s3",
    "share": "s6",
    "window": "padding",
    "grammar": "s4",
    "adapter": "s2",
    "kv": "s1",
}

# -- one run ----------------------------------------------------------------------------------------------------


def batch_over_time(engine: EngineRun, seconds: float = 0.0) -> list[Drawing]:
    """The whole run; and where that had to be merged, the steps in which most happened, as they were.

    seconds: at least so long an axis, so that runs side by side have the same."""
    steps = engine.steps
    whole = Window(steps.start, max(steps.end, steps.start + seconds))
    queue = waiting(engine)
    pictures = [batch_picture("The batch over time", engine.rows.runs, _changes(queue, whole), whole, steps.began)]
    if len(steps) > _EXACT:
        first, last = _liveliest(engine)
        close = Window(steps.began[first], steps.ended[last])
        title = f"Close up: steps {first:,} to {last:,}, in which most changed"
        pictures.append(batch_picture(title, engine.rows.runs, _changes(queue, close), close, steps.began))
    return [picture for picture in pictures if picture is not None]


def kv_by_owner(engine: EngineRun, seconds: float = 0.0, most: int = _MOST_OWNERS, width: float = WIDTH) -> Drawing:
    """most: owners that are named."""
    steps = engine.steps
    owners = block_owners(engine, most)
    bands = []
    for index, (name, function) in enumerate(owners.owners.items()):
        label = shortened(name) if owners.by == "request" else name
        own = f"{series_class(index)} edge{' pale' * (index >= SERIES)}"
        bands.append((label, function, own if name != OTHERS else "s7 pale"))
    fixed = ((SHARED_NAME, owners.shared, "shared"), (CACHED_NAME, owners.cached, "cached"))
    bands += [band for band in fixed if len(band[1])]
    about = (
        f"Blocks of {engine.capacity.block_size} tokens, by {owners.by}; those with most at once are named. "
        "Shared: held by several sequences. Cached: full, given up, and not taken again yet. What is empty is free."
    )
    title = f"KV blocks over time by {owners.by}"
    span = Window(steps.start, max(steps.end, steps.start + seconds))
    return blocks_picture(title, about, bands, span, engine.capacity.num_blocks, width)


def queue_over_time(engine: EngineRun) -> Chart:
    span = _span(engine)
    named = [("running", running(engine)), ("waiting", waiting(engine))]
    limit = ("rows", float(engine.capacity.max_rows)) if named[1][1].greatest < 20 * engine.capacity.max_rows else None
    return over_time(
        "Running and waiting", "Sequences with a row, and without one.", named, span, ("sequences", ""), limit
    )


def tokens_per_step(engine: EngineRun) -> Chart:
    steps = engine.steps
    bands = [
        ("decode", steps.over_time(lambda index: steps.decode[index]), "decode"),
        ("prefill", steps.over_time(lambda index: steps.prompt[index]), "prefill"),
        ("rejected drafts", steps.over_time(lambda index: steps.rejected[index]), "idle"),
        ("recomputed", steps.over_time(lambda index: steps.recomputed[index]), "recomputed"),
        ("padding", steps.over_time(lambda index: steps.padding[index]), "padding"),
    ]
    bands = [band for band in bands if band[1].greatest > 0]
    about = "Token slots that a step computed, by what they were for; none while no step ran."
    return stack("Tokens per step", about, bands, Window(steps.start, steps.end), ("tokens", "tokens"))


def step_seconds(engine: EngineRun) -> Chart:
    steps = engine.steps
    function = steps.over_time(lambda index: steps.ended[index] - steps.began[index])
    about = "How long a step took: the gap between events of every stream in it."
    return over_time("Step time", about, [("step", function)], Window(steps.start, steps.end), ("step time", "s"))


def service_over_time(engine: EngineRun) -> Chart | None:
    """By tenant where there are several, else by lane; None where there is one of each."""
    for owner in ("tenant", "lane"):
        served = service(engine, owner)
        if len(served) > 1:
            top = sorted(served, key=lambda name: -served[name].greatest)[:7]
            rest = f" Of {len(served)}, the {len(top)} served most are drawn." if len(served) > len(top) else ""
            about = f"Prompt and output tokens served so far, by {owner}.{rest}"
            named = [(name or "(no name)", served[name]) for name in sorted(top, key=lambda one: served[one].times[0])]
            return over_time(f"Service by {owner}", about, named, _span(engine), ("tokens", "tokens"))
    return None


def requests_over_time(engine: EngineRun, seconds: float = 0.0) -> Drawing | None:
    """Where they are few enough to have a lane each."""
    if not 1 < len(engine.requests) <= _LIVES:
        return None
    segments: dict[int, list[Segment]] = defaultdict(list)
    kinds = {"queue": "waiting", "preempted": "s4"}
    for phase in phases(engine):
        if phase.kind in kinds and phase.end > phase.start:
            segments[phase.sequence].append((kinds[phase.kind], phase.start, phase.end))
    for run in engine.rows.runs:
        segments[run.sequence].append((CLASSES[run.state], run.start, run.end))
    shown = [
        (request.request_id, [one for number in request.sequences for one in segments[number]])
        for request in sorted(engine.requests, key=lambda one: one.arrival)
    ]
    about = "Each lane is a request, from its arrival to its end; samples of one request lie on top of each other."
    span = _span(engine)
    return request_timelines(
        "Requests over time", about, shown, Window(span.start, max(span.end, span.start + seconds))
    )


def ttft_over_time(run: Run) -> Chart | None:
    """Whether latency grew while the run went on."""
    points = sorted((one.intended, value) for one in run.observations if (value := one.ttft) is not None)
    if len(points) < 3:
        return None
    span = Window(points[0][0], points[-1][0])
    function = StepFunction()
    for time, value in points:
        function.set(time, value)
    about = "Time to first token, by intended send time, up to the last one's; a value holds until the next request."
    return over_time("TTFT over the run", about, [("TTFT", function)], span, ("TTFT", "s"))


def run_over_time(run: Run) -> list[Chart]:
    """What was offered and what came of it, where a load client counted that."""
    series = run.series
    if series is None or not series.offered:
        return []
    step = series.step
    span = Window(0.0, step * len(series.offered))

    def rate(values: Sequence[float], per: float) -> StepFunction:
        function = StepFunction()
        for index, value in enumerate(values):
            function.set(index * step, value / per)
        return function

    rates = [("offered", rate(series.offered, step)), ("completed", rate(series.completed, step))]
    tokens, under_way = [("output", rate(series.output_tokens, step))], [("under way", rate(series.running, 1.0))]
    pictures: tuple[tuple[str, str, list[tuple[str, StepFunction]], tuple[str, str]], ...] = (
        ("Offered and completed", "Requests per second.", rates, ("requests", "requests/s")),
        ("Output over the run", "Output tokens per second.", tokens, ("output", "tokens/s")),
        ("Under way", "Requests sent and not ended.", under_way, ("requests", "requests")),
    )
    return [over_time(title, about, named, span, what, resolution=step) for title, about, named, what in pictures]


# -- settings side by side --------------------------------------------------------------------------------------


def latency_spread(named: Sequence[tuple[str, Run]]) -> list[Chart]:
    """How TTFT, ITL and E2E are spread, and their percentiles."""
    kinds: tuple[tuple[str, str, Callable[[Observation], list[float]]], ...] = (
        (
            "TTFT",
            "Completed requests, by their time to first token.",
            lambda one: [] if one.ttft is None else [one.ttft],
        ),
        ("ITL", "All gaps between successive events of a request, each with one token or more.", lambda one: one.gaps),
        ("E2E", "Completed requests, by their time from intended send to last token.", lambda one: [one.e2e]),
    )
    done = [(who, [one for one in run.observations if one.outcome == "completed"]) for who, run in named]
    pictures = [
        cumulative(
            f"{name}, cumulative", about, [(who, [value for one in some for value in of(one)]) for who, some in done]
        )
        for name, about, of in kinds
    ]
    for name, _, _ in kinds:
        levels: list[tuple[str, Percentiles]] = [(who, getattr(run.summary, name.lower())) for who, run in named]
        about = "Columns: p50, p95, p99. Whiskers: 95 % intervals, where the samples reach that far."
        pictures.append(percentile_bars(f"{name}, percentiles", about, levels))
    return [picture for picture in pictures if picture is not None]


def time_spent(named: Sequence[tuple[str, EngineFigures]]) -> PartBars | None:
    """Where requests' time went, all together."""
    bars = []
    for name, figures in named:
        parts: list[Part] = [
            (f"queue: {reason}", figures.queued_by[reason], _QUEUED[reason]) for reason in QUEUE_REASONS
        ]
        parts += [
            ("prefill", figures.time_in["prefill"], "prefill"),
            ("decode", figures.time_in["decode"], "decode"),
            ("preempted", figures.time_in["preempted"], "recomputed"),
            ("other", figures.time_in["other"], "idle"),
        ]
        bars.append((name, parts))
    about = (
        "Seconds of all ended requests together, from arrival to end. Queue: before the first chunk, by what was "
        "waited for. Other: chiefly the step under way at the arrival, and answers that lay ready until their batch "
        "ended."
    )
    return part_bars("Where the time went", about, bars, "s")


def throughput_latency(settings: Sequence[Setting]) -> list[Chart]:
    """Where there are several loads or settings to compare."""
    if sum(len(setting.loads) for setting in settings) < 2:
        return []
    pictures = []
    for key, name, level in (("ttft", "TTFT p99", "p99"), ("ttft", "TTFT p50", "p50"), ("itl", "ITL p99", "p99")):
        named, hidden = [], 0
        for setting in settings:
            points = []
            for load in setting.loads:
                repeats = [run for run in setting.repeats(load) if getattr(run.summary, key).samples]
                hidden += not repeats
                if repeats:
                    points.append(_point(load, repeats, key, level))
            named.append((setting.name, points))
        about = f"Each point is a load, mean of its repeats: output tokens per second, and {name} of the requests."
        if hidden:
            about += f" {hidden} load{'s have' if hidden > 1 else ' has'} none to show: saturated, or without tokens."
        pictures.append(curve(f"{name} against throughput", about, named, ("output", "tokens/s"), (name, "s")))
    return [picture for picture in pictures if picture is not None]


def _point(load: str, repeats: list[Run], key: str, level: str) -> CurvePoint:
    number = len(repeats)
    throughput = sum(run.summary.output_tokens_per_s for run in repeats) / number
    latency = sum(getattr(getattr(run.summary, key), level) for run in repeats) / number
    saturated, valid = any(run.summary.saturated for run in repeats), all(run.valid for run in repeats)
    return CurvePoint(load, throughput, latency, saturated, valid)


# -- parts of the engine's run ----------------------------------------------------------------------------------


def _span(engine: EngineRun) -> Window:
    """From the first arrival or step to the last step."""
    first = min([request.arrival for request in engine.requests] + [engine.steps.start])
    return Window(first, max([request.ended for request in engine.requests] + [engine.steps.end]))


def _changes(queue: StepFunction, span: Window, most: int = 400) -> list[tuple[float, float]]:
    """(time, how many from then on); means over stretches where there are more than `most`."""
    inside = [
        (time, count) for time, count in zip(queue.times, queue.values, strict=True) if span.start < time < span.end
    ]
    if len(inside) <= most:
        return [(span.start, queue.at(span.start)), *inside]
    width = span.seconds / most
    return [(column.time - width / 2, column.mean) for column in queue.columns(span.start, span.end, most)]


def _liveliest(engine: EngineRun) -> tuple[int, int]:
    """First and last of up to CLOSE_UP steps, with no pause between them, in which most runs of rows began."""
    steps = engine.steps
    begun = StepFunction.of_changes((run.start, 1) for run in engine.rows.runs if run.state is not Work.IDLE)
    spans = [
        (first, min(first + CLOSE_UP, end) - 1)
        for start, end in _without_pauses(steps)
        for first in range(start, max(start + 1, end - CLOSE_UP + 1), CLOSE_UP // 4)
    ]
    return max(spans, key=lambda span: begun.at(steps.ended[span[1]]) - begun.at(steps.began[span[0]]))


def _without_pauses(steps: StepSeries) -> list[tuple[int, int]]:
    """Stretches of steps that follow each other: first, and one behind the last."""
    pause = _PAUSE * statistics.median(end - start for start, end in zip(steps.began, steps.ended, strict=True))
    starts = [index for index in range(1, len(steps)) if steps.began[index] - steps.ended[index - 1] > pause]
    return list(pairwise([0, *starts, len(steps)]))
