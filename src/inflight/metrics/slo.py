"""Promises on latency, as people write them: `ttft=1000(p99)`, milliseconds and the percentile that is meant.

The percentile is of requests, but for itl, where it is of a request's own gaps: `itl=45(p95)` is met by a request whose
p95 gap is within 45 ms, whoever asks; `itl_max=100` by one none of whose gaps is longer. A run keeps a promise where
the share of its requests that is meant meets it. Knows how to read one and whether a run kept it; what a request's
figures are, `Observation.figure` knows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from inflight.metrics.definitions import quantile
from inflight.metrics.observation import GAP_SHARE, Observation, Promised, Targets, figure_name

Metric = Literal["ttft", "tpot", "itl", "e2e"]
METRICS: tuple[Metric, ...] = get_args(Metric)
SHARE = 0.99  # of the requests, where nothing is said
_FORM = re.compile(r"(\w+)\s*=\s*([0-9.]+)\s*(?:ms)?\s*(?:\(p(\d+(?:\.\d+)?)\))?")


class SloError(ValueError):
    """An SLO cannot be read; the sentence shows how to write one."""


@dataclass(frozen=True, slots=True)
class Slo:
    """limit in seconds. share: that has to keep it: of the requests, for itl of each request's own gaps."""

    metric: Promised
    limit: float
    share: float = SHARE

    @property
    def of_requests(self) -> float:
        """Share of the requests that have to meet it."""
        return SHARE if self.metric == "itl" else self.share

    @property
    def name(self) -> str:
        """What the promise bounds, in words, as it is written and as answers show its value."""
        if self.metric == "itl":
            return figure_name(self.metric, self.share)
        return f"{figure_name(self.metric, self.share)} p{self.share * 100:g}"

    @property
    def paces(self) -> bool:
        """Whether it bounds the time between tokens."""
        return self.metric in ("tpot", "itl", "itl_max")

    @property
    def bounds_gaps(self) -> bool:
        """Whether it bounds single gaps, all of them or nearly all: then no step may take longer."""
        return self.metric == "itl_max" or (self.metric == "itl" and self.share >= 0.9)

    def __str__(self) -> str:
        return f"{self.name} ≤ {self.limit * 1e3:,.0f} ms"

    def value(self, observations: Iterable[Observation]) -> float:
        """What that share of the requests has at most, in seconds, without anything between two requests: it is within
        the limit exactly where that share meets it. A request that was offered and not answered counts as endless, one
        with nothing to measure (itl and tpot of an answer of one token) as none; nan where that is all of them."""
        figures = [one.figure(self.metric, self.share) for one in observations]
        if all(figure is None for figure in figures):
            return math.nan
        ordered = sorted(figure or 0.0 for figure in figures)
        return ordered[math.ceil(self.of_requests * len(ordered) - 1e-9) - 1]

    def kept(self, observations: Sequence[Observation]) -> bool:
        value = self.value(observations)
        return math.isnan(value) or value <= self.limit


def percentile(observations: Iterable[Observation], metric: Metric, share: float) -> float:
    """Of one latency over all offered requests, in seconds, as answers show it: for itl over all gaps of all of them.
    Endless and nan as in `Slo.value`."""
    values: list[float] = []
    for one in observations:
        if metric == "itl" and one.outcome == "completed":
            values += one.gaps
        elif (value := one.figure(metric)) is not None:
            values.append(value)
    if not values:
        return math.nan
    ordered = sorted(values)
    # Between a number and an endless one there is nothing to interpolate.
    return math.inf if ordered[math.ceil(share * (len(ordered) - 1))] == math.inf else quantile(ordered, share)


def parse_slos(texts: Iterable[str]) -> tuple[Slo, ...]:
    """Each text one or more, with commas between them. Raises SloError."""
    found = [_parse(part.strip()) for text in texts for part in text.split(",") if part.strip()]
    for slo in found:
        if sum((other.metric, other.share) == (slo.metric, slo.share) for other in found) > 1:
            raise SloError(f"--slo gives two limits for {slo.metric} at p{slo.share * 100:g}; give one.")
    return tuple(found)


def stated_share(texts: Iterable[str]) -> float | None:
    """The percentile of requests that is written in all promises that have one, as a share; None where none has (that
    of itl is of a request's own gaps). Raises SloError for different ones: whoever judges a request by all limits
    together can hold it to one share only."""
    parts = [part for text in texts for part in text.split(",") if "(" in part]
    shares = {slo.share for part in parts for slo in parse_slos([part]) if slo.metric != "itl"}
    if len(shares) > 1:
        shown = " and ".join(f"p{share * 100:g}" for share in sorted(shares))
        raise SloError(f"--slo names {shown}, but requests are judged by all limits together; give one percentile.")
    return shares.pop() if shares else None


def targets(slos: Iterable[Slo]) -> Targets:
    """The limits as promises to single requests, for goodput: the tightest of each metric. Raises SloError where two
    percentiles of a request's own gaps are promised."""
    limits: dict[str, float] = {}
    shares = set()
    for slo in slos:
        limits[slo.metric] = min(slo.limit, limits.get(slo.metric, math.inf))
        if slo.metric == "itl":
            shares.add(slo.share)
    if len(shares) > 1:
        shown = " and ".join(f"p{share * 100:g}" for share in sorted(shares))
        raise SloError(f"--slo bounds {shown} of a request's own gaps; give one of them, and itl_max for the longest.")
    gap_share = shares.pop() if shares else GAP_SHARE
    return Targets(**limits, itl_share=None if gap_share == GAP_SHARE else gap_share)


def _parse(text: str) -> Slo:
    match = _FORM.fullmatch(text)
    if match is None:
        raise _unreadable(text)
    metric, limit, share = match[1].lower(), match[2], match[3]
    if metric not in get_args(Promised):
        raise _unreadable(text, f", and {match[1]!r} is no latency")
    try:
        seconds = float(limit) / 1e3
    except ValueError:
        raise _unreadable(text, f", and {limit!r} is no number") from None
    percent = 100 * SHARE if share is None else float(share)
    if seconds <= 0 or not 0 < percent < 100:
        raise _unreadable(text, ", but limits are above 0, and percentiles above 0 and below 100")
    return Slo(cast(Promised, metric), seconds, round(percent / 100, 9))


def _unreadable(text: str, cause: str = "") -> SloError:
    return SloError(
        f"--slo is {text!r}{cause}; give ttft, tpot, itl or e2e with milliseconds, as ttft=500, and if need be the "
        "percentile that has to keep them, as ttft=1000(p99); itl_max=200 bounds every gap between tokens."
    )
