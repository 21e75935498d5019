"""What became of one offered request, as seen by whoever sent it: a load client, an offline run, a simulation.

Knows times and counts; what they mean, `definitions` knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from inflight.metrics.definitions import itl, tpot, ttft

Outcome = Literal["completed", "rejected", "failed", "unfinished"]


@dataclass(frozen=True, slots=True)
class Targets:
    """What one request was promised, in seconds; None: nothing. itl bounds every single gap between its tokens."""

    ttft: float | None = None
    tpot: float | None = None
    itl: float | None = None
    e2e: float | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.ttft, self.tpot, self.itl, self.e2e))


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
    def tpot(self) -> float | None:
        if self.first_token is None or self.last_token is None:
            return None
        return tpot(self.first_token, self.last_token, self.longest_output)

    @property
    def gaps(self) -> list[float]:
        """Between successive tokens of one sample; samples run side by side, so that between theirs nobody waits."""
        return [gap for times in self.sample_times or (self.token_times,) for gap in itl(times)]

    @property
    def e2e(self) -> float:
        return (self.ended if self.last_token is None else self.last_token) - self.intended

    @property
    def delay(self) -> float | None:
        """Schedule delay: how late it was sent."""
        return None if self.sent is None else self.sent - self.intended

    @property
    def attained(self) -> bool:
        """Whether it came to its end and met all of its targets; rejected, failed and unfinished ones did not."""
        if self.outcome != "completed":
            return False
        worst_gap = max(self.gaps, default=None) if self.targets.itl is not None else None
        measured = (self.ttft, self.tpot, worst_gap, self.e2e)
        limits = (self.targets.ttft, self.targets.tpot, self.targets.itl, self.targets.e2e)
        return all(
            limit is None or value is None or value <= limit for value, limit in zip(measured, limits, strict=True)
        )
