"""The observation of one offered request, as its sender saw it: a load client, an offline run, a simulation."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from inflight.metrics.definitions import itl, jct, quantile, tpot, ttft

Outcome = Literal["completed", "rejected", "failed", "unfinished"]
# itl: a percentile of the gaps between a request's own tokens; itl_max: the longest of them.
LatencyMetric = Literal["ttft", "tpot", "itl", "itl_max", "e2e"]
GAP_SHARE = 0.99  # of a request's own gaps that have to meet an itl, by default


class Limit(NamedTuple):
    """The maximum of one latency of a request. gap_share: of its own gaps, for itl alone."""

    metric: LatencyMetric
    seconds: float
    gap_share: float = GAP_SHARE

    def __str__(self) -> str:
        return f"{figure_name(self.metric, self.gap_share)} ≤ {self.seconds * 1e3:,.4g} ms"


@dataclass(frozen=True, slots=True)
class Targets:
    """Latency targets of one request in seconds; None: no target. itl limits the itl_share percentile of the gaps
    between its own tokens (None: GAP_SHARE), itl_max every single one."""

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
        limits: tuple[tuple[LatencyMetric, float | None], ...] = (
            ("ttft", self.ttft),
            ("tpot", self.tpot),
            ("itl", self.itl),
            ("itl_max", self.itl_max),
            ("e2e", self.e2e),
        )
        return (Limit(metric, seconds, gap_share) for metric, seconds in limits if seconds is not None)

    @property
    def gap(self) -> float | None:
        """The tightest of the limits on single gaps, for the engine."""
        return min((limit for limit in (self.itl, self.itl_max) if limit is not None), default=None)


@dataclass(slots=True)  # a frozen one takes seven times as long to make
class Observation:
    """One offered request; not changed once it is made. Times are seconds on one clock, of which only differences have
    a meaning.

    Attributes:
        intended: when it was to be sent, from which its latencies count.
        ended: when the last of it came, or when it was known that nothing more would come.
        outcome: rejected (the server said that it was too busy), failed (any other error), unfinished (the run ended).
        sent: when it was sent; None: never.
        token_times: of each output token, where they were recorded; tokens that came together have the same time.
        sample_times: the same of each sample, where there are several (n > 1).
        output_tokens: of all samples together.
        longest_output: tokens of the longest sample, which the last token belongs to.
        traffic: name of its class of traffic.
        program: name of its program within its tenant; "": it is one by itself.
        status: of HTTP, 0 where there was none.
        error: message, for failed ones.
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
    program: str = ""

    @property
    def ttft(self) -> float | None:
        return None if self.first_token is None else ttft(self.intended, self.first_token)

    @property
    def response(self) -> float | None:
        """Seconds to the first token, or to the end of an answer that has none (an embedding)."""
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
        """Gaps between successive tokens of each sample (`definitions.itl`)."""
        if not self.sample_times:
            return itl(self.token_times)
        return [gap for times in self.sample_times for gap in itl(times)]

    @property
    def e2e(self) -> float:
        return (self.ended if self.last_token is None else self.last_token) - self.intended

    @property
    def delay(self) -> float | None:
        """Schedule delay, a - s."""
        return None if self.sent is None else self.sent - self.intended

    def figure(self, metric: LatencyMetric, gap_share: float = GAP_SHARE) -> float | None:
        """Return the value that a limit on this metric is compared with, in seconds; infinite where the request did not
        complete, None where there is nothing to measure (a gap of one token)."""
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
        """Whether it completed and met all of its targets."""
        return self.outcome == "completed" and all(self.meets(limit) for limit in self.targets.limits())


def figure_name(metric: str, gap_share: float) -> str:
    """Return the name of a latency for messages."""
    return {"itl": f"own ITL p{gap_share * 100:g}", "itl_max": "longest ITL"}.get(metric, metric.upper())


class Program(NamedTuple):
    """The calls of one program. begins: intended send time of the first. ends: of the last; None: not all of them
    completed. refused: whether one was rejected or failed. traffic: its class."""

    begins: float
    ends: float | None
    refused: bool
    traffic: str

    @property
    def seconds(self) -> float:
        """The job completion time; infinite where it did not end."""
        return math.inf if self.ends is None else jct(self.begins, self.ends)


def programs(observations: Iterable[Observation]) -> list[Program]:
    """Return the programs that began, in that order. One with a name alone counts: a request without one is a program
    by itself, whose time is its E2E.

    Args:
        observations: In any order; also of calls that were not sent.
    """
    calls: dict[tuple[str, str], list[Observation]] = {}
    for one in observations:
        if one.program:
            calls.setdefault((one.tenant, one.program), []).append(one)
    found = []
    for requests in calls.values():
        sent = [one.intended for one in requests if one.sent is not None or one.outcome != "unfinished"]
        if sent:
            whole = all(one.outcome == "completed" for one in requests)
            ends = max(one.intended + one.e2e for one in requests) if whole else None
            refused = any(one.outcome in ("rejected", "failed") for one in requests)
            found.append(Program(min(sent), ends, refused, requests[0].traffic))
    return sorted(found, key=lambda one: one.begins)


def completion_times(
    observations: Iterable[Observation], holds: Callable[[float], bool] = lambda time: True
) -> list[float]:
    """Return the job completion times of programs whose requests all completed, in the order in which they began.

    Args:
        observations: In any order.
        holds: Whether a program that began then counts.
    """
    return [one.seconds for one in programs(observations) if one.ends is not None and holds(one.begins)]
