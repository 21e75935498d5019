"""Counts of batch jobs and their lines. May be called in any thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from prometheus_client.core import GaugeMetricFamily, Metric

from inflight.server.jobs.counts import JobCounts
from inflight.server.metrics.families import labelled
from inflight.server.metrics.tally import Tally

OUTCOMES = ("completed", "failed")
ENDS = ("completed", "failed", "expired", "cancelled")
UNDER_WAY = ("validating", "in_progress", "finalizing", "cancelling")


class BatchCounts(JobCounts):
    def __init__(self) -> None:
        self._jobs: Mapping[str, int] = {}
        self._ended = Tally(
            "inflight_batch_jobs_ended", "Batch jobs that ended.", ("status",), [(one,) for one in ENDS]
        )
        self._lines = Tally("inflight_batch_lines", "Lines answered.", ("outcome",), [(one,) for one in OUTCOMES])

    def jobs(self, by_status: Mapping[str, int]) -> None:
        """How many jobs there are now, by OpenAI's status; what is not named counts 0."""
        self._jobs = dict(by_status)

    def ended(self, status: str) -> None:
        self._ended.add(status)

    def lines(self, outcome: Literal["completed", "failed"], count: int = 1) -> None:
        self._lines.add(outcome, by=count)

    def collect(self) -> Iterator[Metric]:
        jobs = {(status,): count for status, count in {**dict.fromkeys(UNDER_WAY, 0), **self._jobs}.items()}
        yield labelled(GaugeMetricFamily, "inflight_batch_jobs", "Batch jobs there are, by status.", ["status"], jobs)
        yield self._ended.family()
        yield self._lines.family()
