"""What became of one offered request, as seen by whoever sent it: a load client, an offline run, a simulation.

Knows times and counts; what they mean, `definitions` knows.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from inflight.metrics.definitions import itl, quantile, tpot, ttft

Outcome = Literal["completed", "rejected", "failed", "unfinished"]
# What can be promised to a request. itl: a percentile of the gaps between its own tokens; itl_max: the longest of them.
Promised = Literal["ttft", "tpot", "itl", "itl_max", "e2e"]
GAP_SHARE = 0.99  # of a request's own gaps that keep an itl, where nothing is said


class Limit(NamedTuple):
    """seconds that one figure of a request may be at most. gap_share: of its own gaps, for itl; others leave it."""

    metric: Promised
    seconds: float
    gap_share: float = GAP_SHARE

    def __str__(self) -> str:
        return f"{figure_name(self.metric, self.gap_share)} ≤ {self.seconds * 1e3:,.4g} ms"


@dataclass(frozen=True, slots=True)
class Targets:
    """What one request was promised, in seconds; None: nothing. itl bounds the itl_share percentile of the gaps between
    its own tokens (None: GAP_SHARE), itl_max every single one."""

    ttft: float | None = None
    tpot: float | None = None
    itl: float | None = None
    e2e: float | None = None
    itl_max: float | None = None
    itl_share: float | None = None

    def __bool__(self) -> bool:
        return any(True for _ in self.limits())

    def limits(self) -> Iterator[Limit]:
        gap_share = GAP_SHARE if self.itl_share is None else self.itl_share
        promised: tuple[tuple[Promised, float | None], ...] = (
            ("ttft", self.ttft),
            ("tpot", self.tpot),
            ("itl", self.itl),
            ("itl_max", self.itl_max),
            ("e2e", self.e2e),
        )
        return (Limit(metric, seconds, gap_share) for metric, seconds in promised if seconds is not None)

    @property
    def pace(self) -> float | None:
        """What an engine is told of the gaps: the tighter of the two."""
        return min((limit for limit in (self.itl, self.itl_max) if limit is not None), default=None)


@dataclass(frozen=True, slots=True)
class Observation:
    """One offered request. Times are seconds on one clock, of which only differences mean anything.

    intended: when it was to be sent, from which its latencies count. sent: when it was; None if it never was.
    ended: when the last of it came, or it was known that nothing more would come.
    outcome: rejected (the server was too busy and said so), failed (any other error), unfinished (the run ended first).
    token_times: when each output token came, where that was watched; tokens that came together have the same time.
    sample_times: the same of each sample, where there are several (n > 1).
    output_tokens: of all samples together; longest_output: of the longest one, which the last token belongs to.
    traffic: name of its class of traffic. status: of HTTP, 0 where there was none. error: in words, for failed ones.
    """

    request_id: str
    intended: float
    ended: float
    outcome: Outcome = "completed"
    sent: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    token_times: Sequence[float] = ()
    sample_times: Sequence[Sequence[float]] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    longest_output: int = 0
    traffic: str = ""
    lane: str = ""
    tenant: str = ""
    targets: Targets = field(default_factory=Targets)
    status: int = 0
    error: str = ""

    @property
    def ttft(self) -> float | None:
        return None if self.first_token is None else ttft(self.intended, self.first_token)

    @property
    def response(self) -> float | None:
        """Until something came: the first token, or all of an answer that has none (a vector)."""
        return self.e2e if self.first_token is None and self.outcome == "completed" else self.ttft

    @property
    def tpot(self) -> float | None:
        if self.first_token is None or self.last_token is None:
            return None
        times = max(self.sample_times or (self.token_times,), key=len)
        with_first = bisect_right(times, times[0]) if times else 1
        return tpot(self.first_token, self.last_token, self.longest_output, with_first)

    @property
    def gaps(self) -> list[float]:
        """Between successive events of one sample (`definitions.itl`); samples run side by side, so that between theirs
        nobody waits."""
        return [gap for times in self.sample_times or (self.token_times,) for gap in itl(times)]

    @property
    def e2e(self) -> float:
        return (self.ended if self.last_token is None else self.last_token) - self.intended

    @property
    def delay(self) -> float | None:
        """Schedule delay: how late it was sent."""
        return None if self.sent is None else self.sent - self.intended

    def figure(self, metric: Promised, gap_share: float = GAP_SHARE) -> float | None:
        """What a promise on this metric is held against, in seconds: the one place that says what each means. Endless
        where the request was not answered to its end; None where there is nothing to measure (a pace of one token)."""
        if self.outcome != "completed":
            return math.inf
        match metric:
            case "ttft":
                return self.ttft
            case "tpot":
                return self.tpot
            case "e2e":
                return self.e2e
            case "itl_max":
                return max(self.gaps, default=None)
            case "itl":
                gaps = sorted(self.gaps)
                return quantile(gaps, gap_share) if gaps else None

    def meets(self, limit: Limit) -> bool:
        value = self.figure(limit.metric, limit.gap_share)
        return value is None or value <= limit.seconds

    @property
    def attained(self) -> bool:
        """Whether it came to its end and met all of its targets; rejected, failed and unfinished ones did not."""
        return self.outcome == "completed" and all(self.meets(limit) for limit in self.targets.limits())


def figure_name(metric: Promised, gap_share: float) -> str:
    """Of a request's figure, in words."""
    return {"itl": f"own ITL p{gap_share * 100:g}", "itl_max": "longest ITL"}.get(metric, metric.upper())
