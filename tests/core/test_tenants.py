"""Tenants: a flood refuses no tenant below its share of the queue, which stays bounded; engines exchange usage."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from breadth import first_of
from hypothesis import given, settings

from inflight.core.estimation.latency import LatencyModel
from inflight.core.policies.fair import Fair
from inflight.core.queueing.admission import Admission
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies.chunked import Chunked
from inflight.core.tenants import TenantWeights, usage_of_others
from inflight.core.types.request import RequestRefused

from .builders import request
from .harness import BATCH, Harness, LaneSetup, Setup

ROOMY = Setup(num_blocks=400, block_size=4, max_rows=2, token_budget=16, max_model_len=64)


class Engine:
    """Under fair, with a limited queue."""

    def __init__(self, weights: dict[str, float] | None = None, **bounds: int):
        admission = Admission("queue", LatencyModel(), **bounds, weights=TenantWeights(weights))
        config = SchedulerConfig(ROOMY.capacity, Chunked(16), Fair(weights), token_budget=16, admission=admission)
        self.harness = Harness(ROOMY)
        self.harness.scheduler = Scheduler(config)
        self.count = 0

    def add(self, tenant: str, **more: Any) -> str:
        """Return the refusal, if it is one."""
        self.count += 1
        try:
            self.harness.add(request(f"{tenant} {self.count}", tenant=tenant, **more))
        except RequestRefused as refusal:
            assert refusal.retry_after > 0
            return str(refusal)
        return ""

    def flood(self, tenant: str, **more: Any) -> int:
        """Add requests until one is refused; return how many were not."""
        return next(count for count in range(10**4) if self.add(tenant, **more))

    def waiting(self) -> Counter[str]:
        lanes = self.harness.scheduler._lanes.all()
        return Counter(one.request.tenant for lane in lanes for one in lane.queue.everyone())


@pytest.mark.parametrize("steps", first_of([0, 5]))
def test_a_flood_of_samples_refuses_another_none_below_its_share(steps: int) -> None:
    engine = Engine(max_requests=64)
    assert engine.flood("flood", n=8) == 8, "alone it may have the whole queue"
    for _ in range(steps):
        engine.harness.step()
        engine.flood("flood", n=8)
    assert engine.flood("light", output=3) >= 32
    waiting = engine.waiting()["light"]
    assert waiting <= 32
    words = f"at most 64 may; {waiting} of them are this tenant's, whose share is 32"
    assert words in engine.add("light")


@pytest.mark.parametrize(
    ("weights", "bounds", "floods", "words"),
    [
        ({}, {"max_requests": 10}, [("flood", {}, 10), ("light", {}, 5), ("flood", {}, 0)], "whose share is 5"),
        ({"paid": 3.0}, {"max_requests": 40}, [("flood", {}, 40), ("paid", {}, 30)], "whose share is 30"),
        ({"paid": 3.0}, {"max_requests": 40}, [("paid", {}, 40), ("flood", {"n": 3}, 3)], "whose share is 10"),
        (
            *({}, {"max_tokens": 100}),
            [("flood", {"prompt": [0] * 20}, 5), ("light", {"prompt": [1] * 10}, 5)],
            "150 tokens wait (50 of them are this tenant's, whose share is 50)",
        ),
    ],
)
def test_requests_and_tokens_that_wait_are_shared_by_weight(
    weights: dict[str, float], bounds: dict[str, int], floods: list[tuple[str, dict[str, Any], int]], words: str
) -> None:
    engine = Engine(weights, **bounds)
    for tenant, more, let_in in floods:
        assert engine.flood(tenant, **more) == let_in
    assert words in engine.add(tenant, **more)


@pytest.mark.parametrize(("policy", "let_in"), [("fair", 5), ("fcfs", 0)])
def test_a_lanes_queue_is_shared_where_its_policy_knows_tenants(policy: str, let_in: int) -> None:
    interactive = LaneSetup("interactive", policy, settings=(("queue_limit", 10),))
    harness = Harness(replace(ROOMY, max_rows=1, lanes=(interactive, BATCH)))
    harness.add(*(request(f"flood {n}", tenant="flood") for n in range(10)))
    harness.add(*(request(f"light {n}", tenant="light") for n in range(let_in)))
    refusal = harness.refuse(request("light", tenant="light"))
    share = f"; {let_in} of them are this tenant's, whose share is 5" if let_in else ""
    assert f"{10 + let_in} requests wait in the lane 'interactive' already, and at most 10 may{share}; try" in refusal


@given(
    bound=st.integers(1, 40),
    script=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6), st.booleans()), max_size=150),
)
@settings(deadline=None)
def test_whatever_names_come_the_queue_stays_within_its_bound(bound: int, script: list[tuple[int, int, bool]]) -> None:
    """Invariant of `core.tenants`: k tenants have no more than 1 + ln k times the bound, and a refused tenant would
    have had more than its share."""
    engine = Engine(max_requests=bound)
    for number, samples, steps in script:
        before, tenant = engine.waiting(), f"t{number}"
        if samples > bound:
            continue
        if engine.add(tenant, n=samples, output=2):
            share = bound / len({tenant, *before})
            assert before[tenant] + samples > share and before.total() + samples > bound
        if steps:
            engine.harness.step()
        waiting = engine.waiting()
        assert waiting.total() <= bound * (1 + math.log(max(1, len(waiting)))) + ROOMY.max_rows
    engine.harness.drain()


def test_each_engine_learns_what_the_others_gave() -> None:
    usage = {
        "one": {"interactive": {"a": 3.0, "b": 1.0}},
        "two": {"interactive": {"a": 2.0}, "batch": {"b": 4.0}},
        "three": {},
    }
    assert usage_of_others(usage, "one") == {"interactive": {"a": 2.0}, "batch": {"b": 4.0}}
    assert usage_of_others(usage, "two") == {"interactive": {"a": 3.0, "b": 1.0}}
    assert usage_of_others(usage, "three") == {"interactive": {"a": 5.0, "b": 1.0}, "batch": {"b": 4.0}}
    assert usage_of_others({"one": usage["one"]}, "one") == {}
