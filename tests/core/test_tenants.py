"""Tenants: a flood refuses no tenant below its share of the queue, which stays bounded; engines exchange usage."""

from __future__ import annotations

import math
from collections import Counter
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
    """Under fair, with admission by places."""

    def __init__(self, weights: dict[str, float] | None = None, **bounds: int):
        weights_of, latency = TenantWeights(weights), LatencyModel()
        admission = Admission("queue", latency, **bounds, weights=weights_of)  # type: ignore[arg-type]
        policy = Fair(weights)
        self.scheduler = Scheduler(
            SchedulerConfig(ROOMY.capacity, Chunked(16), policy, token_budget=16, admission=admission)
        )
        self.harness = Harness(ROOMY)
        self.harness.scheduler = self.scheduler
        self.count = 0

    def add(self, tenant: str, **more: Any) -> str | None:
        """The refusal, if it is one."""
        self.count += 1
        try:
            self.harness.add(request(f"{tenant} {self.count}", tenant=tenant, **more))
        except RequestRefused as refusal:
            assert refusal.retry_after is not None and refusal.retry_after > 0
            return str(refusal)
        return None

    def flood(self, tenant: str, **more: Any) -> int:
        """Until it is refused; how often it was let in."""
        return next(count for count in range(10**4) if self.add(tenant, **more))

    def waiting(self) -> Counter[str]:
        return Counter(view.tenant for lane in self.scheduler._lanes.all() for view in _everyone(lane))


def _everyone(lane: Any) -> list[Any]:
    return [one.request for one in lane.queue.everyone()]


@pytest.mark.parametrize("steps", first_of([0, 5]))
def test_a_flood_of_samples_refuses_another_nothing_below_its_share(steps: int) -> None:
    engine = Engine(max_requests=1024)
    assert engine.flood("flood", n=128) == 8, "alone it may have all places"
    for _ in range(steps):
        engine.harness.step()
        engine.flood("flood", n=128)
    let_in = engine.flood("light", output=3)
    assert let_in >= 512
    waiting = engine.waiting()
    assert waiting["light"] <= 512
    refusal = engine.add("light")
    assert refusal is not None
    assert f"at most 1024 may; {waiting['light']} of them are this tenant's, whose share is 512" in refusal


def test_while_there_is_room_nobodys_share_matters() -> None:
    engine = Engine(max_requests=10)
    assert engine.add("light") is None
    assert engine.flood("flood") == 9


def test_shares_follow_weights() -> None:
    engine = Engine({"paid": 3.0}, max_requests=40)
    assert engine.flood("flood") == 40
    assert engine.flood("paid") == 30
    engine = Engine({"paid": 3.0}, max_requests=40)
    assert engine.flood("paid") == 40
    assert engine.flood("flood", n=3) == 3, "its share is ten"


def test_tokens_that_wait_are_shared_too() -> None:
    engine = Engine(max_tokens=100)
    assert engine.flood("flood", prompt=[0] * 20) == 5
    assert engine.flood("light", prompt=[1] * 10) == 5
    refusal = engine.add("light", prompt=[1] * 10)
    assert (
        refusal is not None and "150 tokens wait already (50 of them are this tenant's, whose share is 50)" in refusal
    )


def test_a_lanes_queue_is_shared_where_its_policy_knows_tenants() -> None:
    for policy, let_in in (("fair", 5), ("fcfs", 0)):
        interactive = LaneSetup("interactive", policy, settings=(("queue_limit", 10),))
        harness = Harness(Setup(max_rows=1, lanes=(interactive, BATCH)))
        harness.add(*(request(f"flood {n}", tenant="flood") for n in range(10)))
        harness.add(*(request(f"light {n}", tenant="light") for n in range(let_in)))
        refusal = harness.refuse(request("light", tenant="light"))
        share = f"; {let_in} of them are this tenant's, whose share is 5" if let_in else ""
        assert (
            f"{10 + let_in} requests wait in the lane 'interactive' already, and at most 10 may{share}; try" in refusal
        )
        harness.drain()


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
        if engine.add(tenant, n=samples, output=2) is not None:
            share = bound / len({tenant, *before})
            assert before[tenant] + samples > share and before.total() + samples > bound
        if steps:
            engine.harness.step()
        waiting = engine.waiting()
        assert waiting.total() <= bound * (1 + math.log(max(1, len(waiting)))) + ROOMY.max_rows
    engine.harness.drain()


GIVEN = {
    "one": {"interactive": {"a": 3.0, "b": 1.0}},
    "two": {"interactive": {"a": 2.0}, "batch": {"b": 4.0}},
    "three": {},
}


def test_each_engine_learns_what_the_others_gave() -> None:
    assert usage_of_others(GIVEN, "one") == {"interactive": {"a": 2.0}, "batch": {"b": 4.0}}
    assert usage_of_others(GIVEN, "two") == {"interactive": {"a": 3.0, "b": 1.0}}
    assert usage_of_others(GIVEN, "three") == {"interactive": {"a": 5.0, "b": 1.0}, "batch": {"b": 4.0}}
    assert usage_of_others({"one": GIVEN["one"]}, "one") == {}
