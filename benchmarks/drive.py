"""Driving an engine with a schedule of requests, on the real clock or a virtual one, and what came of each.

Knows the engine loop and the metric definitions; workloads are made elsewhere. A request's clock starts at its intended
send time, whether or not the engine was ready for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from inflight.core.events import TokensEvent
from inflight.core.plan import BatchPlan, WaitUntil
from inflight.core.request import Request, RequestRefused
from inflight.engine.loop import EngineLoop
from inflight.metrics.definitions import itl
from inflight.records.timings import Timings


@dataclass(slots=True)
class Outcome:
    """One offered request. token_times: when each token came, seconds on the engine's clock."""

    request: Request
    token_times: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    timings: Timings | None = None
    refused: str | None = None

    @property
    def ttft(self) -> float | None:
        """Seconds; None where no token came."""
        return None if self.timings is None or self.timings.ttft_ms is None else self.timings.ttft_ms / 1e3

    @property
    def gaps(self) -> list[float]:
        return itl(self.token_times)

    def met(self, ttft: float, worst_itl: float | None = None) -> bool:
        """Whether it kept its targets; refused ones did not."""
        if self.ttft is None or self.ttft > ttft:
            return False
        return worst_itl is None or max(self.gaps, default=0.0) <= worst_itl


@dataclass(slots=True)
class Run:
    """All outcomes, and the wall time from the first intended send to the last token."""

    outcomes: list[Outcome]
    seconds: float

    @property
    def output_tokens(self) -> int:
        return sum(len(one.token_ids) for one in self.outcomes)

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds

    def ttfts(self) -> list[float]:
        return [one.ttft for one in self.outcomes if one.ttft is not None]

    def gaps(self) -> list[float]:
        return [gap for one in self.outcomes for gap in one.gaps]


def drive(loop: EngineLoop, requests: Iterable[Request]) -> Run:
    """Send each request at `arrival` seconds after the start, and run until all have ended."""
    start = loop.clock.now()
    waiting = sorted((replace(one, arrival=start + one.arrival) for one in requests), key=lambda one: one.arrival)
    outcomes = {one.request_id: Outcome(one) for one in waiting}
    waiting.reverse()
    while waiting or not loop.idle:
        while waiting and waiting[-1].arrival <= loop.clock.now():
            request = waiting.pop()
            try:
                loop.add(request)
            except RequestRefused as refusal:
                outcomes[request.request_id].refused = str(refusal)
        if loop.idle:
            if waiting:
                loop.clock.wait_until(waiting[-1].arrival)
            continue
        result = loop.advance()
        if isinstance(result, WaitUntil):
            loop.clock.wait_until(min(result.time, waiting[-1].arrival) if waiting else result.time)
            continue
        now = loop.clock.now()
        for event in result:
            outcome = outcomes[event.request_id]
            if isinstance(event, TokensEvent):
                outcome.token_times += [now] * len(event.token_ids)
                outcome.token_ids += event.token_ids
            else:
                outcome.timings = event.timings
    return Run(list(outcomes.values()), loop.clock.now() - start)


class Observer:
    """Stands before an executor and notes what its plans held: padding, and how full rows were."""

    def __init__(self) -> None:
        self.slots = 0
        self.padded = 0
        self.most_running = 0

    def note(self, plan: BatchPlan) -> None:
        self.slots += plan.tokens
        self.padded += sum(plan.padding)
        self.most_running = max(self.most_running, len(plan.chunks))
