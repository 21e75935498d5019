"""The pictures and charts of a run, and of several settings side by side."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise

from inflight.core.types.timings import QUEUE_REASONS
from inflight.counted import counted
from inflight.metrics.definitions import Percentiles
from inflight.metrics.observation import Observation
from inflight.metrics.summary import Window
from inflight.records.computed import Work
from inflight.report.charts.batch import CLASSES, Segment, batch_picture, request_timelines
from inflight.report.charts.blocks import blocks_picture
from inflight.report.charts.chart import Chart, Key, series_class
from inflight.report.charts.distribution import Column, CurvePoint, cumulative, curve, histogram, percentile_bars
from inflight.report.charts.frame import WIDTH
from inflight.report.charts.over_time import over_time, stack
from inflight.report.charts.palette import SERIES
from inflight.report.charts.quantity import quantity, shortened
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
_PAUSE = 2.0  # median step times: a longer idle time ends a close-up, which would be mostly empty
_EXACT = 300  # steps up to which a run is drawn step by step
_LANES = 60  # requests
_SEEN = 0.002  # of the greatest column: a smaller part is left out
_OWNERS = 5  # that are named
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
_SPENT = {"prefill": "prefill", "decode": "decode", "preempted": "recomputed", "other": "idle"}  # part → class

# -- one run ----------------------------------------------------------------------------------------------------


def batch_over_time(engine: EngineRun, seconds: float = 0.0) -> list[Drawing]:
    """Draw the whole run; and where that had to be merged, the steps in which most changed, one by one.

    seconds: of the axis at least, so that runs side by side have the same."""
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


def kv_by_owner(engine: EngineRun, seconds: float = 0.0, named: int = _OWNERS, width: float = WIDTH) -> Drawing:
    """Draw the KV blocks of each owner. named: owners with a colour of their own."""
    steps = engine.steps
    owners = block_owners(engine, named)
    bands = []
    for index, (name, function) in enumerate(owners.owners.items()):
        label = shortened(name) if owners.by == "request" else name
        own = f"{series_class(index)} edge{' pale' * (index >= SERIES)}"
        bands.append((label, function, own if name != OTHERS else "s7 pale"))
    fixed = ((SHARED_NAME, owners.shared, "shared"), (CACHED_NAME, owners.cached, "cached"))
    bands += [band for band in fixed if len(band[1])]
    about = (
        f"Blocks of {engine.capacity.block_size} tokens, by {owners.by}; the owners of most at once are named. Shared: "
        "held by several sequences. Cached: full, released, and not taken again yet. Empty: free."
    )
    title = f"KV blocks over time by {owners.by}"
    span = Window(steps.start, max(steps.end, steps.start + seconds))
    return blocks_picture(title, about, bands, span, engine.capacity.num_blocks, width)


def queue_over_time(engine: EngineRun) -> Chart:
    span = _span(engine)
    named = [("running", running(engine)), ("waiting", waiting(engine))]
    limit = ("rows", float(engine.capacity.max_rows)) if named[1][1].greatest < 20 * engine.capacity.max_rows else None
    return over_time(
        "Running and waiting", "Sequences with a request slot, and without.", named, span, ("sequences", ""), limit
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
    about = "Token slots that a step computed, by kind of work; none while no step ran."
    return stack("Tokens per step", about, bands, Window(steps.start, steps.end), ("tokens", "tokens"))


def step_seconds(engine: EngineRun) -> Chart:
    steps = engine.steps
    function = steps.over_time(lambda index: steps.ended[index] - steps.began[index])
    about = "Seconds of a step: the gap between events of every stream in it."
    return over_time("Step time", about, [("step", function)], Window(steps.start, steps.end), ("step time", "s"))


def service_over_time(engine: EngineRun) -> Chart | None:
    """Draw the tokens served by tenant where there are several, else by lane; None where there is one of each."""
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
    """Draw a lane for each request; None where there are too many."""
    if not 1 < len(engine.requests) <= _LANES:
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
    """Draw TTFT over the run, which shows whether it grew."""
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
    """Draw offered, completed and running requests, where a load client counted them."""
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
    tokens, in_flight = [("output", rate(series.output_tokens, step))], [("in flight", rate(series.running, 1.0))]
    pictures: tuple[tuple[str, str, list[tuple[str, StepFunction]], tuple[str, str]], ...] = (
        ("Offered and completed", "Requests per second.", rates, ("requests", "requests/s")),
        ("Output over the run", "Output tokens per second.", tokens, ("output", "tokens/s")),
        ("In flight", "Requests sent and not ended.", in_flight, ("requests", "requests")),
    )
    return [over_time(title, about, named, span, what, resolution=step) for title, about, named, what in pictures]


# -- drafts -----------------------------------------------------------------------------------------------------


def draft_pictures(engine: EngineRun) -> list[Chart]:
    """Draw how many drafts were accepted, by their position in a step, by step, and over time."""
    counts = engine.drafts.counts
    if not counts.chunks:
        return []
    found = (_by_position(engine), _accepted_lengths(engine), _drafts_over_time(engine))
    return [one for one in found if one is not None]


def _by_position(engine: EngineRun) -> Chart | None:
    columns = []
    for position, (drafted, reached, accepted) in enumerate(engine.drafts.counts.positions(), 1):
        share = _percent(accepted / reached) if reached else ""
        columns.append(Column(str(position), (accepted, reached - accepted, drafted - reached), share))
    keys = [
        Key("accepted", "decode", "area"),
        Key("rejected", "padding", "area"),
        Key("behind a rejected one", "idle", "area"),
    ]
    about = (
        "The first draft of a sequence in a step, the second, …; above: the share accepted of drafts behind accepted "
        "ones."
    )
    return histogram("Drafts by position", about, columns, keys, "position among a step's drafts", ("drafts", "drafts"))


def _accepted_lengths(engine: EngineRun) -> Chart | None:
    counts = engine.drafts.counts
    lengths = counts.accepted_lengths()
    shares = {number: lengths.get(number, 0) / counts.chunks for number in range(max(lengths, default=-1) + 1)}
    columns = [Column(str(number), (share,), _percent(share)) for number, share in shares.items()]
    about = (
        f"Of the {counts.chunks:,} times that a sequence had drafts in a step, how many of them were accepted; "
        f"{counts.accepted_tokens / counts.chunks:.2f} on average, and one token more came with them."
    )
    one = [Key("chunks with drafts", "decode", "area")]
    return histogram("Accepted drafts of a step", about, columns, one, "accepted drafts", ("share", "share"))


def _drafts_over_time(engine: EngineRun) -> Chart:
    steps, of = engine.steps, engine.drafts
    rejected = steps.over_time(lambda index: of.drafted[index] - of.accepted[index])
    bands = [
        ("accepted", steps.over_time(lambda index: of.accepted[index]), "decode"),
        ("rejected, or behind a rejected one", rejected, "padding"),
    ]
    about = "Drafts that a step computed, of all sequences together; none where drafting would not have paid."
    return stack("Drafts over time", about, bands, Window(steps.start, steps.end), ("drafts", "drafts per step"))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


# -- settings side by side --------------------------------------------------------------------------------------


def latency_spread(named: Sequence[tuple[str, Run]]) -> list[Chart]:
    """Draw the distributions of TTFT, ITL and E2E, and their percentiles."""
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


def time_spent(named: Sequence[tuple[str, EngineFigures]]) -> Chart | None:
    """Draw the time of all requests by what they waited for and what was computed, a column for each name."""
    queued = [Key(f"queue: {reason}", _QUEUED[reason], "area") for reason in QUEUE_REASONS]
    keys = [*queued, *(Key(part, class_, "area") for part, class_ in _SPENT.items())]
    values = [
        [*(figures.queued_by[reason] for reason in QUEUE_REASONS), *(figures.time_in[part] for part in _SPENT)]
        for _, figures in named
    ]
    greatest = max(map(sum, values), default=0.0)
    shown = [at for at in range(len(keys)) if any(one[at] > _SEEN * greatest for one in values)]
    columns = [
        Column(name, [one[at] for at in shown], quantity(sum(one), "s"))
        for (name, _), one in zip(named, values, strict=True)
    ]
    about = (
        "Seconds of all ended requests together, from arrival to end. Queue: before the first chunk, by its reason. "
        "Other: chiefly the step in flight at the arrival, and answers that lay ready until their batch ended."
    )
    return histogram("Where the time went", about, columns, [keys[at] for at in shown], "", ("time", "s"))


def throughput_latency(settings: Sequence[Setting]) -> list[Chart]:
    """Draw latency against throughput, where there are several loads or settings."""
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
            about += f" Without a point: {counted(hidden, 'load')}, saturated or without tokens."
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
    """Return the time from the first arrival or step to the last end."""
    first = min([request.arrival for request in engine.requests] + [engine.steps.start])
    return Window(first, max([request.ended for request in engine.requests] + [engine.steps.end]))


def _changes(queue: StepFunction, span: Window, limit: int = 400) -> list[tuple[float, float]]:
    """Return (time, waiting from then on); means over stretches where there are more than `limit`."""
    inside = [
        (time, count) for time, count in zip(queue.times, queue.values, strict=True) if span.start < time < span.end
    ]
    if len(inside) <= limit:
        return [(span.start, queue.at(span.start)), *inside]
    width = span.seconds / limit
    return [(column.time - width / 2, column.mean) for column in queue.columns(span.start, span.end, limit)]


def _liveliest(engine: EngineRun) -> tuple[int, int]:
    """Return the first and last of up to CLOSE_UP steps, without a pause between, in which most row runs began."""
    steps = engine.steps
    begun = StepFunction.of_changes((run.start, 1) for run in engine.rows.runs if run.state is not Work.IDLE)
    spans = [
        (first, min(first + CLOSE_UP, end) - 1)
        for start, end in _without_pauses(steps)
        for first in range(start, max(start + 1, end - CLOSE_UP + 1), CLOSE_UP // 4)
    ]
    return max(spans, key=lambda span: begun.at(steps.ended[span[1]]) - begun.at(steps.began[span[0]]))


def _without_pauses(steps: StepSeries) -> list[tuple[int, int]]:
    """Return stretches of steps that follow each other: the first, and one behind the last."""
    pause = _PAUSE * statistics.median(end - start for start, end in zip(steps.began, steps.ended, strict=True))
    starts = [index for index in range(1, len(steps)) if steps.began[index] - steps.ended[index - 1] > pause]
    return list(pairwise([0, *starts, len(steps)]))
