"""Measured runs: one after another against the same server, each with fresh prompts, cut to the measured window and
summarized as a whole and by class, lane and tenant; and sweeps over several rates or concurrencies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from inflight.bench.client_types import BenchError, Progress, RunResult
from inflight.bench.preparing import Prepared
from inflight.metrics.observation import Observation
from inflight.metrics.summary import Summary, Window, summarize
from inflight.workload.workload import Entry, Workload

_FEWEST_ENDED = 10  # a window in which less than one in so many requests ended says nothing of throughput
_SHOWN_ERRORS = 3
_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class Warmup:
    """The beginning of a run that is not measured: so many requests, so many seconds, or a share of the requests."""

    requests: int = 0
    seconds: float = 0.0
    share: float = 0.0

    def ends(self, intended: Sequence[float], begin: float = 0.0) -> float:
        """Return the end of the warm-up. intended: send times in order; begin: the workload's beginning on the same
        clock."""
        skipped = max(self.requests, int(self.share * len(intended)))
        if skipped >= len(intended) or (self.seconds and begin + self.seconds > intended[-1]):
            raise BenchError(
                f"The warm-up ({self}) leaves none of {len(intended)} requests; shorten --warmup, or send more."
            )
        if not skipped:
            return begin + self.seconds
        last = intended[skipped - 1]
        return next(
            (time for time in intended if time > last), begin
        )  # of requests that all come at once, none is first

    def __str__(self) -> str:
        if self.seconds:
            return f"{self.seconds:g} s"
        return f"{self.share:.0%} of the requests" if self.share else f"{self.requests} requests"


@dataclass(frozen=True, slots=True)
class Measured:
    """observations: of all requests that were offered. why: a description of `window`. notes: for the reader of the
    figures."""

    workload: Workload
    result: RunResult
    observations: tuple[Observation, ...]
    window: Window
    why: str
    summary: Summary
    by_class: dict[str, Summary]
    by_lane: dict[str, Summary]
    by_tenant: dict[str, Summary]
    notes: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        return self.result.health.valid

    @property
    def partial(self) -> bool:
        return self.result.interrupted

    @property
    def believed(self) -> bool:
        """Whether there is a figure, and one that can be believed."""
        return self.valid and self.summary.requests > 0


def measure(workload: Workload, result: RunResult, warmup: Warmup) -> Measured:
    """Measure a run; raise BenchError where nothing is left to be measured."""
    paired = [
        (entry, one)
        for entry, one in zip(workload.entries, result.observations, strict=True)
        if _offered(entry, one, workload.closed)
    ]
    observations = tuple(one for _, one in paired)
    if not observations:
        raise BenchError("The run ended before the first request was sent.")
    window, why = measured_part(observations, warmup if not result.interrupted else _kept(warmup, observations))
    notes = [*workload.notes, *_errors(observations)]
    done = [(entry, one) for entry, one in paired if one.outcome == "completed"]
    written = [(entry, one) for entry, one in done if not isinstance(entry.prompt, str)]  # of texts, it is an estimate
    notes += _lengths("Prompts", [(entry.prompt_tokens, one.prompt_tokens) for entry, one in written])
    notes += _lengths("Answers", [(entry.output_tokens, one.output_tokens) for entry, one in done])
    return Measured(
        workload,
        result,
        observations,
        window,
        why,
        summarize(observations, window),
        _grouped(observations, window, lambda one: one.traffic),
        _grouped(observations, window, lambda one: one.lane),
        _grouped(observations, window, lambda one: one.tenant),
        tuple(notes),
    )


def _offered(entry: Entry, one: Observation, closed: bool) -> bool:
    """Whether a request was offered before the run ended: in a closed loop it waits for another's end, in a
    conversation for an answer."""
    return one.sent is not None or (not closed and entry.after is None and one.intended < one.ended)


def measured_part(observations: Sequence[Observation], warmup: Warmup, begin: float = 0.0) -> tuple[Window, str]:
    """Return the window from the end of the warm-up to the last send, without the drain, in which load only falls; up
    to the last end where hardly a request ended before the last send: such a run is one burst. begin: the
    workload's."""
    intended = sorted(one.intended for one in observations)
    start, last = warmup.ends(intended, begin), intended[-1]
    completed = [one.ended for one in observations if one.outcome == "completed" and one.intended >= start]
    within = sum(ended <= last for ended in completed)
    begun = f"after the warm-up ({warmup})" if start > begin else "from the beginning"
    if last > start and within * _FEWEST_ENDED >= len(completed) > 0:
        return Window(start, last), f"{begun} to the last send"
    end = max((one.ended for one in observations), default=last)
    return Window(start, end), f"{begun} to the last end, because hardly a request ended before the last was sent"


def _kept(warmup: Warmup, observations: Sequence[Observation]) -> Warmup:
    """Return the warm-up of an interrupted run; none where nothing would be left."""
    try:
        warmup.ends(sorted(one.intended for one in observations))
    except BenchError:
        return Warmup()
    return warmup


def _grouped(
    observations: Iterable[Observation], window: Window, name_of: Callable[[Observation], str]
) -> dict[str, Summary]:
    """Return summaries by name, without requests that have none."""
    groups: dict[str, list[Observation]] = {}
    for one in observations:
        groups.setdefault(name_of(one), []).append(one)
    return {name: summarize(group, window) for name, group in sorted(groups.items()) if name}


def _errors(observations: Iterable[Observation]) -> list[str]:
    """Return the most frequent errors; ones that differ in their numbers alone count as one."""
    found: dict[str, list[str]] = {}
    for one in observations:
        if one.outcome in ("failed", "rejected") and one.error:
            found.setdefault(_NUMBER.sub("#", one.error), []).append(one.error)
    often = sorted(found.values(), key=len, reverse=True)
    return [f"{len(same):,} × {same[0]}" for same in often[:_SHOWN_ERRORS]]


def _lengths(what: str, pairs: Sequence[tuple[int, int]]) -> list[str]:
    """Return a note on lengths that differ from the requested ones."""
    other = [got - asked for asked, got in pairs if got != asked]
    if not other:
        return []
    mean_asked, mean_got = (sum(pair[side] for pair in pairs) / len(pairs) for side in (0, 1))
    return [
        f"{what}: {len(other):,} of {len(pairs):,} have another length than asked (off by {max(map(abs, other)):,} "
        f"tokens at most; {mean_got:,.1f} tokens on average, asked were {mean_asked:,.1f})."
    ]


@dataclass(slots=True)
class Runner:
    """prompt_seed: of the first run's contents; each further run takes the next. interrupt: whether to stop. send: as
    `client.send`."""

    prepared: Prepared
    send: Callable[..., RunResult]
    warmup: Warmup
    prompt_seed: int
    processes: int = 1
    progress: Callable[[Progress], None] | None = None
    interrupt: Callable[[], bool] | None = None
    runs: int = field(default=0, init=False)

    def run(self, workload: Workload) -> Measured:
        """Send and measure a workload; raise BenchError where nothing is left to be measured."""
        bodies = self.prepared.bodies(workload, self.prompt_seed + self.runs)
        self.runs += 1
        result = self.send(
            workload,
            self.prepared.target,
            bodies,
            processes=self.processes,
            progress=self.progress,
            interrupt=self.interrupt,
        )
        return measure(workload, result, self.warmup)


@dataclass(frozen=True, slots=True)
class Point:
    """value: requests/s, or concurrency."""

    value: float
    measured: Measured


def sweep(
    run: Callable[[float], Measured], values: Sequence[float], report: Callable[[Point], None] = lambda point: None
) -> list[Point]:
    """Run each value in order, up to a run that was interrupted."""
    points: list[Point] = []
    for value in values:
        points.append(Point(value, run(value)))
        report(points[-1])
        if points[-1].measured.partial:
            break
    return points
