"""Throughput against latency, rate by rate."""

from __future__ import annotations

import pytest

from inflight.planning import throughput_latency_curve
from inflight.planning.demand import traffic_of
from inflight.planning.proposal import Overrides, propose

from .builders import drawn, machine


@pytest.mark.wide
def test_latency_grows_with_the_rate_until_it_has_no_meaning() -> None:
    demand, box = drawn(), machine()
    config = propose(box, traffic_of(demand), (), Overrides()).config
    low, middle, beyond = throughput_latency_curve(box, config, demand, [0.3, 4.0, 40.0])
    assert low.ttft is not None and middle.ttft is not None
    assert low.ttft[2] < middle.ttft[2] and low.ttft[0] <= low.ttft[1] <= low.ttft[2]
    assert low.output_tokens_per_s < middle.output_tokens_per_s
    assert beyond.saturated and beyond.ttft is beyond.itl is None
    assert beyond.requests_per_s < 40
