"""Refusals by code, of the server and of the engine."""

from __future__ import annotations

import pytest
from core.builders import request
from core.harness import BATCH, LaneSetup, Setup

from inflight.core.types.request import RequestRefused

from .driven import Driven


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
