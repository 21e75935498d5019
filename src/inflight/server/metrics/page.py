"""The page that Prometheus reads: joins all counts of one server with one engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from inflight.core.scheduling.stats import SchedulerStats
from inflight.core.types.events import Event
from inflight.core.types.plan import BatchPlan, Capacity, StepResult
from inflight.core.types.request import Request, RequestRefused
from inflight.engine.observers import EngineObserver
from inflight.server.metrics import CONTENT_TYPE, gauges, vllm
from inflight.server.metrics.families import Tally, labelled
from inflight.server.metrics.requests import RequestCounts
from inflight.server.metrics.server_counts import Families, ServerCounts
from inflight.server.metrics.steps import StepCounts

Names = Literal["inflight", "vllm"]
_REFUSALS = ("rate_limit_exceeded", "context_length_exceeded", "invalid_request")


class Metrics(ServerCounts):
    """observer: for the engine's loop. With names "vllm" the page has vLLM's names beside ours."""

    def __init__(
        self,
        model_name: str,
        capacity: Capacity,
        names: Names = "inflight",
        *,
        version: str,
        lanes: Iterable[str] = ("interactive", "batch"),
    ):
        """version: of this package. lanes: shown from the start, before their first request."""
        about = "Requests refused, by code; rate_limit_exceeded is overload."
        super().__init__(Tally("inflight_requests_refused", about, ("code",), [(code,) for code in _REFUSALS]))
        self._model_name, self._version = model_name, version
        self._capacity, self._names = capacity, names
        self._steps = StepCounts()
        self._requests = RequestCounts(lanes, capacity.max_model_len)
        self.observer = EngineMetricsObserver(self._steps, self._requests, self._refusals)

    def render(self, stats: SchedulerStats | None) -> tuple[bytes, str]:
        """Return the page and its content type; in any thread. stats: None while no engine works."""
        return generate_latest(Families(self.collect(stats))), CONTENT_TYPE

    def collect(self, stats: SchedulerStats | None) -> Iterator[Metric]:
        build = {(self._version, self._model_name): 1}
        labels = ["version", "model_name"]
        yield labelled(GaugeMetricFamily, "inflight_build_info", "What is served, by what.", labels, build)
        yield GaugeMetricFamily("inflight_engine_up", "1 while the engine works.", int(stats is not None))
        if stats is not None:
            yield from gauges.collect(stats, self._capacity)
        yield from self._steps.collect()
        yield from self._requests.collect()
        yield from self._collect_server()
        if self._names == "vllm":
            yield from vllm.collect(self._model_name, self._capacity, self._steps, self._requests, stats)
        yield from self._collect_process()


class EngineMetricsObserver(EngineObserver):
    """Counts the requests, events and steps of an engine's loop."""

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
    """Return a short name. A call to send again later and one to send otherwise have different names."""
    if refusal.code is not None:
        return refusal.code
    return "invalid_request" if refusal.retry_after is None else "rate_limit_exceeded"
