"""Layouts, found by the same trials, and which of them pays, in sentences."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from inflight.metrics.slo import parse_slos
from inflight.planning.candidate import Candidate
from inflight.planning.demand import Demand, Traced, traffic_of
from inflight.planning.layouts import (
    CHUNKED,
    DISAGGREGATED,
    WHOLE,
    LayoutNeed,
    LayoutOutlook,
    colocated,
    confirmed_need,
    disaggregated,
    layout_need,
    layout_needs,
    layouts_result,
    pool_configs,
    pool_rates,
)
from inflight.planning.machine import Machine
from inflight.planning.plan import Plan, as_text, plan
from inflight.planning.proposal import Overrides
from inflight.planning.question import LayoutQuestion, Question
from inflight.planning.rendering import render
from inflight.planning.result import PlanResult, plan_result
from inflight.planning.simulation import Tiers, Trial, try_out
from inflight.planning.sizing import candidate_for
from inflight.planning.trial_runner import TrialRunner
from inflight.simulate.disagg import Link
from inflight.workload.workload import Entry, Workload

from .builders import drawn, machine

QUICK, SLOW = Link(1e5, 100.0), Link(1e5, 0.05)  # a prompt of 400 tokens: 3 ms, 6 s
LONG = {"prompt": "lognormal:400:800", "answer": "lognormal:30:60"}
STRICT = "ttft=3000(p90),itl=160(p90)"
FEW = (40, 60, 120)


def runner(demand: Demand, slos: str, of: Machine | None = None, requests: Any = FEW) -> TrialRunner:
    asked = Question(machines=[of or machine()], demand=demand, slos=parse_slos([slos]), requests=requests)
    return TrialRunner(asked, traffic_of(demand))


@cache
def needs(link: Link | None) -> dict[str, LayoutNeed]:
    one = runner(drawn(50.0, **LONG), STRICT)
    best = candidate_for(one.question, one.traffic, one.question.machines[0], Overrides())
    return {need.layout.name: need for need in layout_needs(one, best, link)}


def lines(found: LayoutOutlook) -> list[str]:
    return [line.strip() for line in render("layouts", layouts=found).splitlines()]


def outlook(rate: float, link: Link | None = QUICK) -> LayoutOutlook:
    demand = drawn(rate, **LONG)
    return LayoutOutlook(list(needs(link).values()), demand, traffic_of(demand), link)


@pytest.mark.wide
def test_pools_serve_more_where_steps_with_prompts_are_too_long() -> None:
    """A step of 64 tokens breaks 160 ms, so that chunks are small, and each of their steps costs 100 ms anyway."""
    found = needs(QUICK)
    assert list(found) == [WHOLE, CHUNKED, DISAGGREGATED]
    assert found[DISAGGREGATED].rate > 1.5 * max(found[CHUNKED].rate, found[WHOLE].rate)
    met = found[DISAGGREGATED].met
    assert met is not None and met.met and len(met.busy) == 2


@pytest.mark.wide
def test_a_slow_link_takes_what_pools_bring() -> None:
    one = runner(drawn(50.0, **LONG), STRICT)
    layout = needs(QUICK)[DISAGGREGATED].layout
    assert layout.pools is not None
    slow = replace(layout, pools=replace(layout.pools, link=SLOW))
    assert layout_need(one, slow).rate < 0.5 * needs(QUICK)[DISAGGREGATED].rate


def test_splits_follow_the_work() -> None:
    """Long prompts want more engines for prompts; long answers for answers."""

    def split(**lengths: str) -> float:
        one = runner(drawn(50.0, **lengths), "ttft=9000(p90)")
        best = candidate_for(one.question, one.traffic, one.question.machines[0], Overrides())
        pools = disaggregated(one, best, QUICK)[0].pools
        assert pools is not None
        return pools.prefill / pools.decode

    assert split(prompt="2000", answer="5") > 1 > split(prompt="20", answer="200")


def test_pool_rates_are_those_of_engines_that_do_one_thing() -> None:
    """A prompt of 400 tokens in one step of 0.5 s; answers of 30 tokens beside others, each in as many steps."""
    one = runner(drawn(50.0, prompt="400", answer="30"), "ttft=9000(p90),tpot=150(p90)")
    prompts, answers = pool_configs(one, machine())
    prefill, decode = pool_rates(machine(), one.traffic, prompts, answers)
    assert prefill == pytest.approx(2.0)
    rows = answers.max_num_seqs
    assert rows == 35  # the most whose step of 0.135 s leaves a tenth of the SLO
    assert decode == pytest.approx(rows / (30 * 0.135))
    assert answers.max_num_batched_tokens is not None and answers.max_num_batched_tokens > rows


def test_pools_are_made_of_whole_engines() -> None:
    need = needs(QUICK)[DISAGGREGATED]
    pools = need.layout.pools
    assert pools is not None and need.rate
    total = pools.prefill + pools.decode
    assert need.engines(drawn(10 * need.rate * total)) == (10 * pools.prefill, 10 * pools.decode)
    assert need.engines(drawn(0.01 * need.rate)) == (1, 1)
    assert need.gpus(drawn(0.01 * need.rate)) == 2


def test_it_is_said_whether_it_pays_and_why() -> None:
    said = " ".join(lines(outlook(60.0)))
    assert "disaggregated prefill pays: " in said and "in place of" in said and "times the requests per GPU" in said
    assert "all streams wait for each prompt that is computed beside them" in said
    data = layouts_result(outlook(60.0))
    _, chunked, pools = data.found
    assert [one.layout for one in data.found] == [WHOLE, CHUNKED, DISAGGREGATED]
    assert pools.gpus is not None and chunked.gpus is not None and pools.gpus < chunked.gpus
    assert pools.split and pools.decode_asks == "after"
    assert data.verdicts and data.link_gbps == QUICK.gbps


def test_a_small_demand_does_not_fill_engines_of_both_kinds() -> None:
    rate = 0.9 * needs(QUICK)[WHOLE].rate
    assert "disaggregated prefill does not pay at this rate: 2 GPUs in place of 1" in " ".join(lines(outlook(rate)))


def test_layouts_that_never_meet_the_slos_say_so() -> None:
    of = needs(QUICK)
    never = replace(of[DISAGGREGATED], met=None, missed=of[DISAGGREGATED].missed)
    demand = drawn(60.0, **LONG)
    found = LayoutOutlook([of[WHOLE], of[CHUNKED], never], demand, traffic_of(demand), QUICK)
    said = " ".join(lines(found))
    assert (
        "meets the SLOs at no rate: even at" in said
        and "disaggregated prefill does not pay: it meets the SLOs at no" in said
    )
    none = [replace(one, met=None) for one in of.values()]
    assert all(one.gpus is None for one in layouts_result(replace(found, needs=none)).found)
    only = [none[0], none[1], of[DISAGGREGATED]]
    assert "replicas that do both meet the SLOs at no rate" in " ".join(lines(replace(found, needs=only)))


def test_where_the_link_or_the_split_is_in_the_way_that_is_the_reason() -> None:
    of = needs(QUICK)
    met = of[DISAGGREGATED].met
    assert met is not None and of[DISAGGREGATED].layout.pools is not None
    worse = replace(met, rate=0.3 * of[WHOLE].rate, busy=(0.95, 0.3))
    pools = replace(of[DISAGGREGATED].layout.pools, link=SLOW)
    slow = LayoutNeed(replace(of[DISAGGREGATED].layout, pools=pools), worse, None)
    demand = drawn(60.0, **LONG)
    said = " ".join(lines(LayoutOutlook([of[WHOLE], slow], demand, traffic_of(demand), SLOW)))
    assert "disaggregated prefill does not pay: " in said
    assert "ms on a link of 0 Gbit/s" in said and "decode engines are idle 70% of the time" in said


@pytest.mark.parametrize(("highest", "confirms"), [(9.0, 6.0), (5.5, 6.0 / 1.05**3), (1.0, 0.0)])
def test_a_layouts_rate_meets_the_slos_with_the_planned_seed_too(
    highest: float, confirms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the plan's own: otherwise the table shows fewer replicas of the same settings than the plan."""
    one = runner(drawn(50.0), "ttft=3000(p90)")
    slo, best = one.question.slos[0], candidate_for(one.question, one.traffic, one.question.machines[0], Overrides())
    like = try_out(best.machine, best.config, one.question.demand.workload(1.0, 60, 0), one.question.slos)
    seeds = set[int]()

    def run(self: TrialRunner, candidate: Candidate, rate: float, *, seed: int, **more: Any) -> Trial:
        seeds.add(seed)
        return replace(like, rate=rate, values={slo: 1.0 if rate <= highest else 4.0})

    monkeypatch.setattr(TrialRunner, "run", run)
    found = confirmed_need(one, LayoutNeed(colocated(one, best)[1], replace(like, rate=6.0), None))
    assert found.rate == pytest.approx(confirms) and seeds == {2}
    assert (found.missed is None) == (highest > 6.0)


def test_a_layouts_confirmation_runs_on_until_its_slos_are_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the planned load itself does: a p99 that few requests keep is not decided."""
    one = runner(drawn(50.0), "ttft=3000(p99)", requests=None)
    slo, best = one.question.slos[0], candidate_for(one.question, one.traffic, one.question.machines[0], Overrides())
    few = try_out(best.machine, best.config, one.question.demand.workload(1.0, 60, 0), one.question.slos)
    ran_on: list[bool] = []

    def run(self: TrialRunner, candidate: Candidate, rate: float, *, decides: bool = False, **more: Any) -> Trial:
        ran_on.append(decides)
        return replace(few, rate=rate, values={slo: 4.0 if decides and rate > 5.8 else 1.0})

    monkeypatch.setattr(TrialRunner, "run", run)
    found = confirmed_need(one, LayoutNeed(colocated(one, best)[1], replace(few, rate=6.0), None))
    assert ran_on == [False, True, False, True] and found.rate == pytest.approx(6.0 / 1.05)


def planned(demand: Demand, slos: str, asked: LayoutQuestion | None, of: Machine | None = None) -> Plan:
    machines = [of or machine()]
    found = plan(Question(machines=machines, demand=demand, slos=parse_slos([slos]), requests=FEW, layouts=asked))
    assert isinstance(found, Plan)
    return found


def conversations(requests: int = 1500, groups: int = 24) -> Workload:
    """A thousand tokens of one of many beginnings, of which a replica holds few."""
    rng, now, entries = random.Random(0), 0.0, []
    for _ in range(requests):
        now += rng.expovariate(10.0)
        group = rng.randrange(groups)
        prefix = tuple(64 * group + part for part in range(64))
        entries.append(Entry(now, 1024 + rng.randint(10, 60), rng.randint(5, 20), prefix=prefix, block_size=16))
    return Workload(tuple(entries), "conversations")


@pytest.mark.wide
def test_a_tier_pays_where_prompts_begin_alike_and_memory_is_short() -> None:
    small = machine(blocks=500, host_blocks=0, block_bytes=2.0**20, copy_seconds=1e-5)
    one = runner(Traced(conversations(), 4.0), "ttft=4000(p90)", small, (150, 200, 300))
    best = candidate_for(one.question, one.traffic, small, Overrides())
    found = layout_needs(one, best, None, tiers=(Tiers(host_gib=3.0),))
    seen = LayoutOutlook(found, one.question.demand, one.traffic, None)
    said = lines(seen)
    assert any(one.startswith("it pays with 3 GiB of host: ") for one in said), said
    assert "the link between engines is not known; give --transfer-gbps" in " ".join(said)
    every = layouts_result(seen).found
    tier = next(one for one in every if one.tiers)
    plain = next(one for one in every if one.layout == tier.layout and not one.tiers)
    assert tier.cached_share > 1.2 * plain.cached_share


@pytest.mark.wide
def test_a_plan_compares_layouts_where_asked() -> None:
    asked = LayoutQuestion(lambda machine: QUICK, tiers=lambda machine: (Tiers(host_gib=3.0),))
    found = planned(drawn(2.0), "ttft=4000(p90)", asked)
    assert found.layouts is not None
    said = as_text(found)
    assert "Layouts on the same machine, for the same SLOs:" in said
    assert "tiers were not tried: prompts share no beginnings" in said
    assert "disaggregated prefill and decode (--compare-layouts)" not in said
    data = plan_result(found)
    assert isinstance(data, PlanResult) and data.layouts is not None and data.layouts.verdicts
    plain = planned(drawn(2.0), "ttft=4000(p90)", None)
    assert plain.layouts is None and "Layouts" not in as_text(plain)
