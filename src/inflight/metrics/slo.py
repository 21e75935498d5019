"""Latency SLOs as users write them: `ttft=1000(p99)`, milliseconds and a percentile.

The percentile is of requests, except for itl, where it is of a request's own gaps: `itl=45(p95)` is met by a request
whose p95 gap is within 45 ms, `itl_max=100` by one none of whose gaps is longer. `jct=60000(p95)` is of whole programs
(conversations, agents' runs) in place of requests. A run meets an SLO where that share of its requests, or programs,
meets it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from inflight.metrics.observation import GAP_SHARE, LatencyMetric, Observation, Targets, figure_name, programs

Metric = Literal["ttft", "tpot", "itl", "e2e"]
METRICS: tuple[Metric, ...] = get_args(Metric)
SloMetric = Literal["ttft", "tpot", "itl", "itl_max", "e2e", "jct"]
SHARE = 0.99  # of the requests, by default
_FORM = re.compile(r"(?:([\w-]+)\.)?(\w+)\s*=\s*([0-9.]+)\s*(?:ms)?\s*(?:\(p(\d+(?:\.\d+)?)\))?")


class SloError(ValueError):
    """An SLO cannot be read; the sentence shows how to write one."""


@dataclass(frozen=True, slots=True)
class Slo:
    """A limit in seconds, and the share that has to meet it: of the requests, for itl of each request's own gaps, for
    jct of the programs. traffic: name of the class whose requests it is about; "": all."""

    metric: SloMetric
    limit: float
    share: float = SHARE
    traffic: str = ""

    @property
    def of_requests(self) -> float:
        """Share of the requests, or programs, that have to meet it."""
        return SHARE if self.metric == "itl" else self.share

    @property
    def latency(self) -> LatencyMetric:
        """The latency of single requests that it limits."""
        assert self.metric != "jct", "programs are judged where they are known"
        return self.metric

    @property
    def is_of_programs(self) -> bool:
        """Whether it limits the completion time of whole programs (JCT)."""
        return self.metric == "jct"

    @property
    def name(self) -> str:
        """The name of what it limits, as reports show its value."""
        of_class = f"{self.traffic}: " if self.traffic else ""
        if self.metric == "itl":
            return f"{of_class}{figure_name(self.metric, self.share)}"
        return f"{of_class}{figure_name(self.metric, self.share)} p{self.share * 100:g}"

    @property
    def paces(self) -> bool:
        """Whether it limits the time between tokens."""
        return self.metric in ("tpot", "itl", "itl_max")

    @property
    def bounds_gaps(self) -> bool:
        """Whether it limits single gaps, all of them or nearly all: then no step may take longer."""
        return self.metric == "itl_max" or (self.metric == "itl" and self.share >= 0.9)

    @property
    def limit_name(self) -> str:
        """The limit alone, without the share that has to meet it."""
        return f"{self.metric.upper()} ≤ {self.limit * 1e3:,.0f} ms"

    def __str__(self) -> str:
        return f"{self.name} ≤ {self.limit * 1e3:,.0f} ms"

    def value(self, observations: Iterable[Observation]) -> float:
        """Return the maximum over that share of the requests, in seconds, without interpolation: it is within the limit
        exactly where that share meets it.

        A request that did not complete counts as infinite, one with nothing to measure (itl and tpot of an answer of
        one token) as 0; nan where no request has anything to measure. Of programs all observations of a run are to be
        given.
        """
        counted = (one for one in observations if self.traffic in ("", one.traffic))
        if self.metric == "jct":
            return self.maximum(sorted(one.seconds for one in programs(counted)))
        figures = [one.figure(self.metric, self.share) for one in counted]
        if all(figure is None for figure in figures):
            return math.nan
        return self.maximum(sorted(figure or 0.0 for figure in figures))

    def maximum(self, figures: Sequence[float]) -> float:
        """Return the maximum over that share of sorted figures of requests, or programs; nan where there are none."""
        return _maximum(figures, self.of_requests)


def percentile(observations: Iterable[Observation], metric: Metric, share: float) -> float:
    """Return the maximum of a latency over that share of all offered requests, in seconds, as `Slo.value` does; of itl
    over that share of all gaps of all requests. Infinite and nan as there."""
    return percentiles(observations, metric, (share,))[0]


def shares_of(ordered: Sequence[float], shares: Sequence[float]) -> tuple[float, ...]:
    """Return the maximum over each of these shares of sorted values; nan where there are none."""
    return tuple(_maximum(ordered, share) for share in shares)


def percentiles(observations: Iterable[Observation], metric: Metric, shares: Sequence[float]) -> tuple[float, ...]:
    """Return several percentiles as `percentile` does."""
    values: list[float] = []
    for one in observations:
        if metric == "itl" and one.outcome == "completed":
            values += one.gaps
        elif (value := one.figure(metric)) is not None:
            values.append(value)
    return shares_of(sorted(values), shares)


def _maximum(ordered: Sequence[float], share: float) -> float:
    """Return the maximum over a share of sorted values; nan where there are none."""
    return ordered[math.ceil(share * len(ordered) - 1e-9) - 1] if ordered else math.nan


def parse_slos(texts: Iterable[str]) -> tuple[Slo, ...]:
    """Read texts of one or more SLOs, separated by commas. Raises SloError."""
    found = [_parse(part.strip()) for text in texts for part in text.split(",") if part.strip()]
    for slo in found:
        if sum(replace(other, limit=slo.limit) == slo for other in found) > 1:
            raise SloError(f"--slo gives two limits for {slo.metric} at p{slo.share * 100:g}; give one.")
    return tuple(found)


def without_programs(texts: Iterable[str]) -> tuple[tuple[str, ...], tuple[Slo, ...]]:
    """Return the texts of SLOs of requests, and the SLOs of programs. Raises SloError."""
    parts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    of_programs = tuple(slo for slo in parse_slos(parts) if slo.is_of_programs)
    return tuple(part for part in parts if not _parse(part).is_of_programs), of_programs


def stated_share(texts: Iterable[str]) -> float | None:
    """Return the share of requests that all SLOs state which state one (that of itl is of a request's own gaps); None
    where none does.

    Raises:
        SloError: they state different ones, although a request is evaluated by all limits together.
    """
    parts = [part for text in texts for part in text.split(",") if "(" in part]
    shares = {slo.share for part in parts for slo in parse_slos([part]) if slo.metric != "itl"}
    if len(shares) > 1:
        shown = " and ".join(f"p{share * 100:g}" for share in sorted(shares))
        raise SloError(f"--slo names {shown}, but requests are evaluated by all limits together; give one percentile.")
    return shares.pop() if shares else None


def targets(slos: Iterable[Slo]) -> Targets:
    """Return the tightest limit of each metric as targets of single requests, for goodput.

    Raises:
        SloError: two percentiles of a request's own gaps, or programs, are limited.
    """
    limits: dict[str, float] = {}
    shares = set()
    for slo in slos:
        if slo.traffic:
            raise SloError(
                f"--slo limits the class {slo.traffic!r} alone, but requests are evaluated by one set of limits here; "
                "give it as a target of the class (ttft_ms and so on in its table)."
            )
        if slo.is_of_programs:
            raise SloError(
                f"--slo limits {slo}, the time of whole programs, but requests are evaluated one by one here; limit "
                "e2e, or ask inflight plan or inflight simulate, which judge programs."
            )
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
    traffic, metric, limit, share = match[1] or "", match[2].lower(), match[3], match[4]
    if metric not in get_args(SloMetric):
        raise _unreadable(text, f", and {match[2]!r} is no latency")
    try:
        seconds = float(limit) / 1e3
    except ValueError:
        raise _unreadable(text, f", and {limit!r} is no number") from None
    percent = 100 * SHARE if share is None else float(share)
    if seconds <= 0 or not 0 < percent < 100:
        raise _unreadable(text, ", but limits are above 0, and percentiles above 0 and below 100")
    return Slo(cast(SloMetric, metric), seconds, round(percent / 100, 9), traffic)


def _unreadable(text: str, cause: str = "") -> SloError:
    return SloError(
        f"--slo is {text!r}{cause}; give ttft, tpot, itl or e2e with milliseconds, as ttft=500, and if need be the "
        "percentile that has to keep them, as ttft=1000(p99); itl_max=200 bounds every gap between tokens, and "
        "jct=60000 whole programs."
    )
