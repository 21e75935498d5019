"""The page that Prometheus reads: joins all counts of one server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from inflight.core.scheduling.stats import SchedulerStats
from inflight.core.types.plan import Capacity
from inflight.server.metrics import CONTENT_TYPE, gauges, vllm
from inflight.server.metrics.batch import BatchCounts
from inflight.server.metrics.families import labelled
from inflight.server.metrics.http import HttpCounts
from inflight.server.metrics.observer import EngineWatcher
from inflight.server.metrics.requests import RequestCounts
from inflight.server.metrics.steps import StepCounts
from inflight.server.metrics.tally import Tally

Names = Literal["inflight", "vllm"]
_REFUSALS = ("rate_limit_exceeded", "context_length_exceeded", "invalid_request")


class Metrics:
    """observer: to be given to the engine's loop. batch: to be told of batch jobs.

    With names "vllm" the page has vLLM's names beside ours.
    """

    def __init__(
        self,
        model_name: str,
        capacity: Capacity,
        names: Names = "inflight",
        *,
        version: str,
        lanes: Iterable[str] = ("interactive", "batch"),
    ):
        """version: of this package. lanes: shown from the start, before anybody came."""
        self.batch = BatchCounts()
        self._model_name, self._version = model_name, version
        self._capacity, self._names = capacity, names
        self._steps = StepCounts()
        self._requests = RequestCounts(lanes, capacity.max_model_len)
        self._http = HttpCounts()
        self._refusals = Tally(
            "inflight_requests_refused",
            "Requests refused, by code; rate_limit_exceeded is overload.",
            ("code",),
            [(code,) for code in _REFUSALS],
        )
        self.observer = EngineWatcher(self._steps, self._requests, self._refusals)
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)

    def observe_http(self, endpoint: str, status: int, seconds: float) -> None:
        """An HTTP request is answered. endpoint: the route's template, never the path that a client wrote: labels must
        be few."""
        self._http.observe(endpoint, status, seconds)

    def refused(self, code: str) -> None:
        """A request was refused before it reached the engine (which counts its own refusals)."""
        self._refusals.add(code)

    def render(self, snapshot: SchedulerStats | None) -> tuple[bytes, str]:
        """The page and its content type; in any thread. snapshot: None while no engine works."""
        return generate_latest(_Page(self, snapshot)), CONTENT_TYPE

    def collect(self, snapshot: SchedulerStats | None) -> Iterator[Metric]:
        build = {(self._version, self._model_name): 1}
        labels = ["version", "model_name"]
        yield labelled(GaugeMetricFamily, "inflight_build_info", "What is served, by what.", labels, build)
        yield GaugeMetricFamily("inflight_engine_up", "1 while the engine works.", int(snapshot is not None))
        if snapshot is not None:
            yield from gauges.collect(snapshot, self._capacity)
        yield from self._steps.collect()
        yield from self._requests.collect()
        yield self._refusals.family()
        yield from self._http.collect()
        yield from self.batch.collect()
        if self._names == "vllm":
            yield from vllm.collect(self._model_name, self._capacity, self._steps, self._requests, snapshot)
        yield from self._registry.collect()


class _Page:
    """The shape in which prometheus_client wants it."""

    def __init__(self, metrics: Metrics, snapshot: SchedulerStats | None):
        self._metrics, self._snapshot = metrics, snapshot

    def collect(self) -> Iterable[Metric]:
        return self._metrics.collect(self._snapshot)
