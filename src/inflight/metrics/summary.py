"""Summarize a run: throughput and latency side by side, whether latency still grew, and the run over time."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from inflight.metrics.definitions import Percentiles, attainment, goodput, percentiles, sorted_percentiles
from inflight.metrics.latencies import Latencies, latencies
from inflight.metrics.observation import Observation, completion_times

SEGMENTS = 10
MIN_VALUES = 3  # values in a segment
SIGNIFICANT = 2.326  # one-sided, 1 %
NO_PROGRAMS = percentiles(())


@dataclass(frozen=True, slots=True)
class Trend:
    """A trend by Mann and Kendall's test over the means of segments, since single latencies depend on each other too
    much; the rise is by Theil and Sen's slope.

    rise: in seconds of latency, from the beginning of the window to its end. z: of the test; large means a trend."""

    rise: float
    z: float
    typical: float  # median of the segments' means

    @property
    def growing(self) -> bool:
        """Whether latency rises significantly, and by more than its typical value."""
        return self.z > SIGNIFICANT and self.rise > self.typical


def trend(points: Iterable[tuple[float, float]], start: float, end: float) -> Trend | None:
    """Return the trend of points (time, latency) from start to end; None where there are too few."""
    segments: list[list[float]] = [[] for _ in range(SEGMENTS)]
    length = (end - start) / SEGMENTS
    if length <= 0:
        return None
    for time, value in points:
        segments[min(SEGMENTS - 1, max(0, math.floor((time - start) / length)))].append(value)
    means = [(index, statistics.fmean(values)) for index, values in enumerate(segments) if len(values) >= MIN_VALUES]
    if len(means) < SEGMENTS - 2:
        return None
    pairs = list(itertools.combinations(means, 2))
    score = sum((later[1] > earlier[1]) - (later[1] < earlier[1]) for earlier, later in pairs)
    number = len(means)
    deviation = math.sqrt(number * (number - 1) * (2 * number + 5) / 18)
    slope = statistics.median((later[1] - earlier[1]) / (later[0] - earlier[0]) for earlier, later in pairs)
    return Trend(slope * SEGMENTS, (score - 1) / deviation, statistics.median(mean for _, mean in means))


@dataclass(frozen=True, slots=True)
class Window:
    """The measured part of a run, without warm-up and drain; seconds on the observations' clock."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return max(self.end - self.start, 1e-9)

    def holds(self, time: float | None) -> bool:
        return time is not None and self.start <= time <= self.end


@dataclass(frozen=True, slots=True)
class Summary:
    """Latencies in seconds, of completed requests whose intended send time lies in the window. Rates are per second of
    the window: of the tokens and ends that fell into it, whenever their requests were sent.

    Attributes:
        requests: completed ones.
        offered: requests + rejected + failed + unfinished, by intended send time in the window.
        goodput: requests_per_s of those that met their targets.
        attainment: share of the offered requests that met their targets.
        concurrency: requests in flight, mean over the window.
        concurrency_by_little: the same by Little's law, arrival rate × mean time in the system; where the two differ,
            the window was not steady.
        itl: over all gaps of all requests.
        jct: of programs that began in the window and whose requests all completed, whenever they ended.
        ttft_trend: None: too few requests.
    """

    requests: int
    failed: int
    rejected: int
    unfinished: int
    offered: int
    wall_seconds: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    requests_per_s: float
    offered_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    goodput: float
    attainment: float
    concurrency: float
    concurrency_by_little: float
    ttft: Percentiles
    tpot: Percentiles
    itl: Percentiles
    e2e: Percentiles
    delay: Percentiles
    ttft_trend: Trend | None
    jct: Percentiles = NO_PROGRAMS

    @property
    def saturated(self) -> bool:
        """Whether latency was still growing at the end: then percentiles depend on the length of the run, and the
        completed rate is the maximum of this setting."""
        return self.ttft_trend is not None and self.ttft_trend.growing

    @property
    def attained_per_s(self) -> float:
        """Goodput by the requests that were sent in the window, whenever they ended, for windows so short that the ends
        in them belong to requests that were sent before."""
        return self.attainment * self.offered_per_s

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "saturated": self.saturated}


def summarize(observations: Sequence[Observation], window: Window | None = None) -> Summary:
    """Summarize a window; None: the whole run, from the first intended send to the last end."""
    return summarize_with_latencies(observations, window or whole(observations))[0]


def summarize_with_latencies(observations: Sequence[Observation], window: Window) -> tuple[Summary, Latencies]:
    """Return the summary of a window, and the latencies that its percentiles were taken of."""
    offered = [one for one in observations if window.holds(one.intended)]
    done = [one for one in offered if one.outcome == "completed"]
    outcomes = [one.outcome for one in offered]
    ended = [one for one in observations if one.outcome == "completed" and window.holds(one.ended)]
    input_tokens = sum(one.prompt_tokens for one in observations if window.holds(_read_at(one)))
    output_tokens = sum(_tokens_within(one, window) for one in observations)
    found = latencies(done)
    summary = Summary(
        requests=len(done),
        failed=outcomes.count("failed"),
        rejected=outcomes.count("rejected"),
        unfinished=outcomes.count("unfinished"),
        offered=len(offered),
        wall_seconds=window.seconds,
        prompt_tokens=sum(one.prompt_tokens for one in done),
        cached_tokens=sum(one.cached_tokens for one in done),
        output_tokens=sum(one.output_tokens for one in done),
        requests_per_s=len(ended) / window.seconds,
        offered_per_s=len(offered) / window.seconds,
        input_tokens_per_s=input_tokens / window.seconds,
        output_tokens_per_s=output_tokens / window.seconds,
        total_tokens_per_s=(input_tokens + output_tokens) / window.seconds,
        goodput=goodput((one.attained for one in ended), window.seconds),
        attainment=attainment(one.attained for one in offered),
        concurrency=sum(_seconds_within(one, window) for one in observations) / window.seconds,
        concurrency_by_little=math.fsum(found.e2e) / window.seconds,
        ttft=sorted_percentiles(found.ttft),
        tpot=sorted_percentiles(found.tpot),
        itl=sorted_percentiles(found.itl),
        e2e=sorted_percentiles(found.e2e),
        delay=percentiles(value for one in offered if (value := one.delay) is not None),
        ttft_trend=ttft_trend(done, window),
        jct=percentiles(completion_times(observations, window.holds)),
    )
    return summary, found


def ttft_trend(observations: Iterable[Observation], window: Window) -> Trend | None:
    """Return the trend of the time to the first token in a window; None where there are too few requests."""
    done = (one for one in observations if one.outcome == "completed" and window.holds(one.intended))
    return trend(_responses(done), window.start, window.end)


def whole(observations: Iterable[Observation]) -> Window:
    """Return the window from the first intended send to the last end."""
    times = [(one.intended, one.ended) for one in observations]
    return Window(min((first for first, _ in times), default=0.0), max((last for _, last in times), default=0.0))


def _responses(done: Iterable[Observation]) -> Iterable[tuple[float, float]]:
    return ((one.intended, value) for one in done if (value := one.response) is not None)


def _read_at(one: Observation) -> float | None:
    """Return the time at which its prompt was known to be read."""
    return None if one.response is None else one.intended + one.response


def _tokens_within(one: Observation, window: Window) -> int:
    """Count output tokens in the window; where their times are not known, all count at the request's end."""
    if one.token_times:
        times = one.token_times
        return bisect.bisect_right(times, window.end) - bisect.bisect_left(times, window.start)
    return one.output_tokens if window.holds(one.ended) else 0


def _seconds_within(one: Observation, window: Window) -> float:
    """Return the seconds that it was in flight within the window."""
    return max(0.0, min(one.ended, window.end) - max(one.intended, window.start))


MAX_PIECES = 3_600
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1_800, 3_600)  # seconds


@dataclass(frozen=True, slots=True)
class Series:
    """A run over time: piece k lasts from k × step to (k + 1) × step seconds. running: requests in flight, mean over
    the piece, by intended send time and end. Where tokens' times are not known, all count at their request's end."""

    step: float
    offered: tuple[int, ...]
    completed: tuple[int, ...]
    output_tokens: tuple[int, ...]
    running: tuple[float, ...]


def series(observations: Sequence[Observation]) -> Series:
    """Return the run from 0 to the last end in pieces of a second, or of more where it is longer than an hour."""
    end = max((one.ended for one in observations), default=0.0)
    step = next((step for step in _STEPS if end < step * MAX_PIECES), math.ceil(end / MAX_PIECES) + 1)
    pieces = math.floor(end / step) + 1
    offered, completed, tokens = ([0] * pieces for _ in range(3))
    running = [0.0] * pieces

    def piece(time: float) -> int:
        return min(max(math.floor(time / step), 0), pieces - 1)

    for one in observations:
        offered[piece(one.intended)] += 1
        if one.outcome == "completed":
            completed[piece(one.ended)] += 1
        for time in one.token_times or (one.ended,) * one.output_tokens:
            tokens[piece(time)] += 1
        for index in range(piece(one.intended), piece(one.ended) + 1):
            within = min(one.ended, (index + 1) * step) - max(one.intended, index * step)
            running[index] += max(within, 0.0) / step
    return Series(step, tuple(offered), tuple(completed), tuple(tokens), tuple(running))
