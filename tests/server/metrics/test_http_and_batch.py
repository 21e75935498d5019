"""HTTP answers and batch jobs."""

from __future__ import annotations

from inflight.server.metrics.page import Metrics

from .driven import ROOMY, Page


def test_http_answers_by_route_and_status() -> None:
    metrics = Metrics("tiny", ROOMY.capacity, version="1.2.3")
    metrics.observe_http("/v1/completions", 200, 0.5)
    metrics.observe_http("/v1/completions", 429, 0.25)
    metrics.observe_http("/health", 200, 0.125)
    page = Page(metrics.render(None))
    assert page.get("inflight_http_requests_total", endpoint="/v1/completions", status="429") == 1
    assert page.histogram("inflight_http_request_seconds", endpoint="/v1/completions") == (2, 0.75)


def test_batch_jobs_and_lines() -> None:
    metrics = Metrics("tiny", ROOMY.capacity, version="1.2.3")
    metrics.batch.jobs({"in_progress": 2, "validating": 1})
    metrics.batch.lines("completed", 5)
    metrics.batch.lines("failed")
    metrics.batch.ended("expired")
    page = Page(metrics.render(None))
    assert page.get("inflight_batch_jobs", status="in_progress") == 2
    assert page.get("inflight_batch_lines_total", outcome="completed") == 5
    assert page.get("inflight_batch_lines_total", outcome="failed") == 1
    assert page.get("inflight_batch_jobs_ended_total", status="expired") == 1
    metrics.batch.jobs({})
    assert Page(metrics.render(None)).total("inflight_batch_jobs") == 0
