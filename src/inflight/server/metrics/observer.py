"""The metrics' ear in the engine: hands what the loop tells to those who count it."""

from __future__ import annotations

from inflight.core.types.events import Event
from inflight.core.types.plan import BatchPlan, StepResult
from inflight.core.types.request import Request, RequestRefused
from inflight.engine.observers import EngineObserver
from inflight.server.metrics.requests import RequestCounts
from inflight.server.metrics.steps import StepCounts
from inflight.server.metrics.tally import Tally


class EngineWatcher(EngineObserver):
    """An `inflight.engine.loop.EngineObserver`."""

    def __init__(self, steps: StepCounts, requests: RequestCounts, refusals: Tally):
        self._steps, self._requests, self._refusals = steps, requests, refusals

    def added(self, request: Request, now: float) -> None:
        self._requests.added(request)

    def refused(self, request: Request, refusal: RequestRefused, now: float) -> None:
        self._refusals.add(refusal_code(refusal))

    def step(self, plan: BatchPlan, result: StepResult, planned: float, committed: float) -> None:
        self._steps.count(plan, result)

    def events(self, events: list[Event], now: float) -> None:
        self._requests.events(events, now)


def refusal_code(refusal: RequestRefused) -> str:
    """A short name: a client that should come back later is not one that should ask for something else."""
    if refusal.code is not None:
        return refusal.code
    return "invalid_request" if refusal.retry_after is None else "rate_limit_exceeded"
