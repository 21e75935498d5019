"""Which router pays, said by the plan."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from inflight.metrics.slo import parse_slos
from inflight.planning.demand import Traced
from inflight.planning.outlook import RouterNeed
from inflight.planning.plan import Plan, as_text, plan
from inflight.planning.question import Question
from inflight.planning.result import PlanResult, plan_result
from inflight.workload.workload import Entry, Workload

from .builders import drawn, machine

GROUPS, SHARED = 24, 1024


def sharing(requests: int = 3000) -> Workload:
    """A thousand tokens of one of many instructions, of which a replica holds few."""
    rng, now, entries = random.Random(0), 0.0, []
    for _ in range(requests):
        now += rng.expovariate(10.0)
        group = rng.randrange(GROUPS)
        prefix = tuple(64 * group + part for part in range(SHARED // 16))
        entries.append(Entry(now, SHARED + rng.randint(10, 60), rng.randint(5, 20), prefix=prefix, block_size=16))
    return Workload(tuple(entries), "sharing")


def answered(question: Question) -> Plan:
    found = plan(question)
    assert isinstance(found, Plan)
    return found


@pytest.mark.wide
def test_where_prompts_begin_alike_a_router_that_knows_it_takes_fewer() -> None:
    few_blocks = machine(blocks=800)
    slos = parse_slos(["ttft=4000(p90)"])
    found = answered(
        Question(machines=[few_blocks], demand=Traced(sharing(), 6.0), slos=slos, requests=(100, 200, 400))
    )
    needs = {one.router: one for one in found.routers}
    assert list(needs) == ["round-robin", "least-loaded", "prefix-aware"]
    aware, usual = needs["prefix-aware"], needs["least-loaded"]
    assert aware.replicas is not None and usual.replicas is not None
    assert aware.replicas < usual.replicas and aware.cached > usual.cached + 0.1
    assert f"prefix-aware pays: it takes {usual.replicas - aware.replicas} fewer than least-loaded" in as_text(found)
    data = plan_result(found)
    assert isinstance(data, PlanResult) and [one.router for one in data.routers] == list(needs)


def test_a_router_pays_where_the_usual_one_meets_the_slos_at_no_rate() -> None:
    found = plan(Question(machines=[machine()], demand=drawn(2.0), requests=(20, 40, 80)), fast=True)
    assert isinstance(found, Plan)
    needs = [RouterNeed("least-loaded", None, None, 2), RouterNeed("prefix-aware", found.trial, 3, 2)]
    said = as_text(replace(found, routers=needs))
    assert "prefix-aware pays: with least-loaded no rate was found that meets the SLOs" in said
    assert "none takes fewer" not in said


@pytest.mark.wide
def test_without_shared_prefixes_no_router_is_tried() -> None:
    slos = parse_slos(["ttft=4000(p99)"])
    found = answered(Question(machines=[machine()], demand=drawn(20.0), slos=slos, requests=(100, 200, 400)))
    assert found.replicas > 1 and not found.routers and "Routers before" not in as_text(found)
