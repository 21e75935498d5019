"""Counts outside the engine: HTTP calls, refusals, batch jobs."""

from __future__ import annotations

import pytest
from core.builders import request
from core.harness import BATCH, LaneSetup, Setup

from inflight.core.types.request import RequestRefused
from inflight.server.metrics.page import Metrics

from .driven import ROOMY, Driven, Page


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


def test_refusals_by_code() -> None:
    lane = LaneSetup(settings=(("queue_limit", 1),))
    driven = Driven(Setup(lanes=(lane, BATCH), max_rows=1))
    for wrong in (request("a", [0] * 99), request("b", [99]), request("c", []), request("d", lane="x")):
        with pytest.raises(RequestRefused):
            driven.add(wrong)
    driven.add(request("e"))
    with pytest.raises(RequestRefused):
        driven.add(request("f"))
    driven.metrics.refused("missing_api_key")
    page = driven.page()
    assert page.get("inflight_requests_refused_total", code="rate_limit_exceeded") == 1
    assert page.get("inflight_requests_refused_total", code="context_length_exceeded") == 1
    assert page.get("inflight_requests_refused_total", code="invalid_request") == 3
    assert page.get("inflight_requests_refused_total", code="missing_api_key") == 1
    assert page.total("inflight_requests_accepted_total") == 1
