"""Counts that a server makes outside its engine: HTTP calls, refusals, batch jobs and its process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from inflight.server.jobs.worker import JobCounts
from inflight.server.metrics.families import Tally, labelled
from inflight.server.metrics.histogram import SECONDS, Histogram

OUTCOMES = ("completed", "failed")
ENDS = ("completed", "failed", "expired", "cancelled")
RUNNING = ("validating", "in_progress", "finalizing", "cancelling")


class BatchCounts(JobCounts):
    """Counts of batch jobs and their lines. Any thread may call it."""

    def __init__(self) -> None:
        self._jobs: Mapping[str, int] = {}
        self._ended = Tally(
            "inflight_batch_jobs_ended", "Batch jobs that ended.", ("status",), [(one,) for one in ENDS]
        )
        self._lines = Tally("inflight_batch_lines", "Lines answered.", ("outcome",), [(one,) for one in OUTCOMES])

    def jobs(self, by_status: Mapping[str, int]) -> None:
        """Replace the numbers of jobs, by OpenAI's status; a status without a number counts 0."""
        self._jobs = dict(by_status)

    def ended(self, status: str) -> None:
        self._ended.add(status)

    def lines(self, outcome: Literal["completed", "failed"], count: int = 1) -> None:
        self._lines.add(outcome, by=count)

    def collect(self) -> Iterator[Metric]:
        jobs = {(status,): count for status, count in {**dict.fromkeys(RUNNING, 0), **self._jobs}.items()}
        yield labelled(GaugeMetricFamily, "inflight_batch_jobs", "Batch jobs there are, by status.", ["status"], jobs)
        yield self._ended.family()
        yield self._lines.family()


class HttpCounts:
    """Counts of HTTP calls, by endpoint and status, in the event loop's thread."""

    def __init__(self) -> None:
        self._requests = Tally(
            "inflight_http_requests", "HTTP requests answered, by route and status.", ("endpoint", "status")
        )
        self._seconds: dict[str, Histogram] = {}

    def observe(self, endpoint: str, status: int, seconds: float) -> None:
        self._requests.add(endpoint, str(status))
        histogram = self._seconds.get(endpoint)
        if histogram is None:
            histogram = self._seconds[endpoint] = Histogram(SECONDS)
        histogram.observe(seconds)

    def collect(self) -> Iterator[Metric]:
        yield self._requests.family()
        family = HistogramMetricFamily(
            "inflight_http_request_seconds", "From the request's first byte to its answer's last.", labels=["endpoint"]
        )
        for endpoint, histogram in sorted(self._seconds.copy().items()):
            family.add_metric([endpoint], histogram.buckets(SECONDS), histogram.sum())
        yield family


class ServerCounts:
    """Counts of one server. batch: receives counts of batch jobs."""

    def __init__(self, refusals: Tally):
        """refusals: by code."""
        self.batch = BatchCounts()
        self._http, self._refusals = HttpCounts(), refusals
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    def observe_http(self, endpoint: str, status: int, seconds: float) -> None:
        """Count an HTTP call. endpoint: the route's template, never the path of the client: labels must be few."""
        self._http.observe(endpoint, status, seconds)

    def refused(self, code: str) -> None:
        """Count a call that was refused before it reached an engine, which counts its own refusals."""
        self._refusals.add(code)

    def _collect_server(self) -> Iterator[Metric]:
        yield self._refusals.family()
        yield from self._http.collect()
        yield from self.batch.collect()

    def _collect_process(self) -> Iterable[Metric]:
        return self._process.collect()


class Families:
    """A page in the shape that prometheus_client reads."""

    def __init__(self, families: Iterable[Metric]):
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
