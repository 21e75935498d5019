"""Counts of HTTP requests, by endpoint and status. Called in the event loop's thread."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily, Metric

from inflight.server.metrics.buckets import SECONDS
from inflight.server.metrics.histogram import Histogram
from inflight.server.metrics.tally import Tally


class HttpCounts:
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
