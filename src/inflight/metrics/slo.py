"""Promises on latency, as people write them: `ttft=1000(p99)`, milliseconds and the percentile that is meant.

Knows how to read one and whether a run kept it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from inflight.metrics.definitions import quantile
from inflight.metrics.observation import Observation, Targets

Metric = Literal["ttft", "tpot", "itl", "e2e"]
METRICS: tuple[Metric, ...] = ("ttft", "tpot", "itl", "e2e")
_FORM = re.compile(r"(\w+)\s*=\s*([0-9.]+)\s*(?:ms)?\s*(?:\(p(\d+(?:\.\d+)?)\))?")


class SloError(ValueError):
    """An SLO cannot be read; the sentence shows how to write one."""


@dataclass(frozen=True, slots=True)
class Slo:
    """limit in seconds, which the share of requests (of gaps, for itl) has to keep."""

    metric: Metric
    limit: float
    share: float = 0.99

    def __str__(self) -> str:
        return f"{self.metric.upper()} p{self.share * 100:g} ≤ {self.limit * 1e3:,.0f} ms"

    def value(self, observations: Iterable[Observation]) -> float:
        """The percentile in seconds. A request that was offered and not answered counts as endless; nan where there is
        nothing to measure (itl and tpot of answers of one token)."""
        return percentile(observations, self.metric, self.share)

    def kept(self, observations: Sequence[Observation]) -> bool:
        value = self.value(observations)
        return math.isnan(value) or value <= self.limit


def percentile(observations: Iterable[Observation], metric: Metric, share: float) -> float:
    """Of one latency over all offered requests, in seconds; see `Slo.value`."""
    values: list[float] = []
    for one in observations:
        if one.outcome != "completed":
            values.append(math.inf)
        elif metric == "itl":
            values += one.gaps
        else:
            value = {"ttft": one.ttft, "tpot": one.tpot, "e2e": one.e2e}[metric]
            if value is not None:
                values.append(value)
    if not values:
        return math.nan
    ordered = sorted(values)
    # Between a number and an endless one there is nothing to interpolate.
    return math.inf if ordered[math.ceil(share * (len(ordered) - 1))] == math.inf else quantile(ordered, share)


def parse_slos(texts: Iterable[str]) -> tuple[Slo, ...]:
    """Each text one or more, with commas between them. Raises SloError."""
    found: list[Slo] = []
    for text in texts:
        for part in text.split(","):
            if part.strip():
                found.append(_parse(part.strip()))
    for slo in found:
        if sum((other.metric, other.share) == (slo.metric, slo.share) for other in found) > 1:
            raise SloError(f"--slo gives two limits for {slo.metric} at p{slo.share * 100:g}; give one.")
    return tuple(found)


def stated_share(texts: Iterable[str]) -> float | None:
    """The percentile that is written in all promises that have one, as a share; None where none has. Raises SloError
    for different ones: whoever judges a request by all limits together can hold it to one share only."""
    shares = {slo.share for text in texts for part in text.split(",") if "(" in part for slo in parse_slos([part])}
    if len(shares) > 1:
        shown = " and ".join(f"p{share * 100:g}" for share in sorted(shares))
        raise SloError(f"--slo names {shown}, but requests are judged by all limits together; give one percentile.")
    return shares.pop() if shares else None


def targets(slos: Iterable[Slo]) -> Targets:
    """The limits as promises to single requests, for goodput: the tightest of each metric."""
    limits: dict[str, float] = {}
    for slo in slos:
        limits[slo.metric] = min(slo.limit, limits.get(slo.metric, math.inf))
    return Targets(**limits)


def _parse(text: str) -> Slo:
    match = _FORM.fullmatch(text)
    if match is None:
        raise _unreadable(text)
    metric, limit, share = match[1].lower(), match[2], match[3]
    if metric not in METRICS:
        raise _unreadable(text, f", and {match[1]!r} is no latency")
    try:
        seconds = float(limit) / 1e3
    except ValueError:
        raise _unreadable(text, f", and {limit!r} is no number") from None
    percent = 99.0 if share is None else float(share)
    if seconds <= 0 or not 0 < percent < 100:
        raise _unreadable(text, ", but limits are above 0, and percentiles above 0 and below 100")
    return Slo(cast(Metric, metric), seconds, round(percent / 100, 9))


def _unreadable(text: str, cause: str = "") -> SloError:
    return SloError(
        f"--slo is {text!r}{cause}; give ttft, tpot, itl or e2e with milliseconds, as ttft=500, and if need be the "
        "percentile that has to keep them, as ttft=1000(p99)."
    )
