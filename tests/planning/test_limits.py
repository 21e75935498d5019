"""The cost of each limit, which measurements narrow the interval, and how plans are ranked."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from inflight.metrics.slo import parse_slos
from inflight.models.known import read_model
from inflight.planning.candidate import Candidate
from inflight.planning.demand import traffic_of
from inflight.planning.layouts import CHUNKED, DISAGGREGATED, Layout, LayoutNeed
from inflight.planning.limits import limit_cost
from inflight.planning.machine import Hardware, Machine
from inflight.planning.meter import Spent
from inflight.planning.planned_load import confirmed, confirmed_rate
from inflight.planning.question import Question
from inflight.planning.ranking import ranked, ranked_on
from inflight.planning.rendering import sentence
from inflight.planning.runner_up import Rivals, confirmed_others, runner_up
from inflight.planning.search import Capacity
from inflight.planning.sensitivity import measurements
from inflight.planning.simulation import Pools, Trial
from inflight.planning.sizing import candidate_for, measure
from inflight.planning.trial_runner import PLANNED_SEED, TrialRunner
from inflight.simulate.disagg import Link
from inflight.simulate.hardware import find_gpu
from inflight.simulate.parallelism import Parallelism

from .builders import drawn, machine


@cache
def measured(slo: str) -> tuple[TrialRunner, Candidate]:
    question = Question(machines=[machine()], demand=drawn(20.0), slos=parse_slos([slo]), requests=(100, 200, 400))
    traffic = traffic_of(question.demand)
    runner = TrialRunner(question, traffic)
    return runner, measure(runner, candidate_for(question, traffic, question.machines[0], question.overrides))


def test_a_tight_limit_costs_replicas_and_a_lax_one_none() -> None:
    runner, best = measured("ttft=900(p99),e2e=600000(p99)")
    replicas = best.replicas(runner.question.demand)
    tight, lax = (limit_cost(runner, best, replicas, slo) for slo in runner.question.slos)
    assert tight.relaxed.limit == pytest.approx(1.8)
    assert tight.saved > 0 and tight.replicas + tight.saved == replicas
    assert lax.saved == 0 and lax.replicas == replicas


def test_a_limit_that_is_kept_where_more_is_served_costs_nothing() -> None:
    """With another seed the planned rate is lower than the highest of the search, of which no limit is the cause."""
    runner, best = measured("ttft=900(p99),e2e=600000(p99)")
    lower = replace(best, capacity=replace(best.capacity, missed=None), rate=0.6 * best.rate)
    replicas = lower.replicas(runner.question.demand)
    lax = limit_cost(runner, lower, replicas, runner.question.slos[1])
    assert (lax.saved, lax.replicas, lax.rate) == (0, replicas, lower.rate)


def planned_load_misses_from(
    monkeypatch: pytest.MonkeyPatch, runner: TrialRunner, best: Candidate, most: float
) -> list[float]:
    """Let trials of the planned load miss the SLOs above a rate, and return the replicas of those that are run."""
    tried, usual = list[float](), TrialRunner.run

    def run(self: TrialRunner, candidate: Candidate, rate: float, *, seed: int = 0, **more: Any) -> Trial:
        if seed != PLANNED_SEED:
            return usual(self, candidate, rate, seed=seed, **more)
        tried.append(self.question.demand.rate / rate)
        assert best.capacity.met is not None
        missed = rate > most * 1.0001
        return replace(best.capacity.met, values={one: 2 * one.limit * missed for one in self.question.slos})

    monkeypatch.setattr(TrialRunner, "run", run)
    return tried


def test_what_a_limit_costs_is_found_under_the_planned_load_as_the_plan_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an easier seed is called the laxer limit's doing."""
    runner, best = measured("ttft=900(p99)")
    replicas = best.replicas(runner.question.demand)
    easy = limit_cost(runner, best, replicas, runner.question.slos[0])
    assert easy.saved > 1
    planned_load_misses_from(monkeypatch, runner, best, 20.0 / (easy.replicas + 1))
    hard = limit_cost(runner, best, replicas, runner.question.slos[0])
    assert hard.replicas == easy.replicas + 1 and hard.rate == pytest.approx(20.0 / hard.replicas)
    planned_load_misses_from(monkeypatch, runner, best, 20.0 / replicas)
    assert limit_cost(runner, best, replicas, runner.question.slos[0]).saved == 0


def test_a_dearer_runner_up_has_as_many_replicas_as_the_planned_load_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, best = measured("ttft=900(p99)")
    other = replace(best, machine=replace(best.machine, name="pair", gpus=2))
    fewest = other.replicas(runner.question.demand)
    tried = planned_load_misses_from(monkeypatch, runner, best, 20.0 / (fewest + 1))
    found = runner_up(runner, best, Rivals([other]))
    assert tried == pytest.approx([fewest, fewest + 1])
    assert found is not None and found.replicas(runner.question.demand) == fewest + 1


def test_a_rival_that_the_planned_load_refuses_makes_room_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, best = measured("ttft=900(p99)")
    first, second, third = (
        replace(best, machine=replace(best.machine, name=name), rate=rate, capacity=Capacity(None, None, 0))
        for name, rate in (("first", best.rate), ("second", best.rate / 4), ("third", best.rate / 5))
    )
    others = [third, replace(best, machine=replace(best.machine, name="no rate"), rate=0.0), first, second]
    planned_load_misses_from(monkeypatch, runner, best, best.rate / 3)
    found = runner_up(runner, best, Rivals([third, first, second]))
    assert found is not None and (found.machine.name, found.rate) == ("second", second.rate)
    left = confirmed_others(others, found, runner.question)
    assert [(one.machine.name, one.rate) for one in left] == [("no rate", 0.0), ("first", 0.0), ("second", second.rate)]

    planned_load_misses_from(monkeypatch, runner, best, 0.0)
    assert runner_up(runner, best, Rivals([first])) is None
    assert [one.rate for one in confirmed_others(others, None, runner.question)] == [0.0] * 4


def test_where_each_measured_rival_is_refused_an_untried_machine_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, best = measured("ttft=900(p99)")
    refused = replace(best, machine=replace(best.machine, name="refused"))
    untried = replace(best, machine=replace(best.machine, name="untried"), rate=0.0)

    def confirm(runner: TrialRunner, found: Candidate) -> Candidate:
        return replace(found, rate=0.0) if found.machine.name == "refused" else found

    monkeypatch.setattr("inflight.planning.runner_up.confirmed", confirm)
    found = runner_up(runner, best, Rivals([refused], [untried]))
    assert found is not None and found.machine.name == "untried" and found.rate


@cache
def on_gpus() -> tuple[TrialRunner, Candidate]:
    hardware = Hardware(model=read_model("llama-3-8b"), gpu=find_gpu("a100-80"), price_per_hour=2.0)
    question = Question(machines=[hardware.machine(2, 1000.0)], demand=drawn(100.0, "1000", "200"))
    traffic = traffic_of(question.demand)
    return TrialRunner(question, traffic), candidate_for(question, traffic, question.machines[0], question.overrides)


def spending(most: str = "bandwidth") -> Trial:
    """Return a trial whose steps spend 82 % of their time with one bottleneck."""
    trial = measured("ttft=4000(p99)")[1].capacity.met
    assert trial is not None
    shares = {
        ("linear", bound): 0.82 if bound == most else 0.06 for bound in ("bandwidth", "compute", "link", "launch")
    }
    return replace(trial, spent=Spent(8.0, 0.05, shares))  # type: ignore[arg-type]


def priced_rate() -> tuple[TrialRunner, Candidate]:
    runner, best = on_gpus()
    return runner, replace(best, rate=2.0)


def test_measurements_are_the_largest_parts_of_the_interval() -> None:
    runner, best = priced_rate()
    found = measurements(runner, best, 50, spending(), 39, 72, (0.7 * best.rate, 1.3 * best.rate))
    assert len(found) == 2 and all(one.part >= other.part for one, other in pairwise(found))
    for one in found:
        slow, fast = one.rate_interval
        assert 0.7 * best.rate < slow < best.rate < fast < 1.3 * best.rate
        expected = (math.ceil(100.0 / fast), math.ceil(100.0 / slow))  # 50 replicas are rounded up, too
        assert one.replicas_interval == pytest.approx(expected, abs=1)
    assert found[0].replicas_interval[1] <= found[1].replicas_interval[1]  # type: ignore[operator]


def test_no_measurement_is_named_where_nothing_is_uncertain_or_classes_are_not_known() -> None:
    runner, best = on_gpus()
    assert not measurements(runner, best, 3, spending(), 3, 3, (1.0, 1.0))
    assert not measurements(*measured("ttft=900(p99),e2e=600000(p99)"), 100, spending(), 80, 150, (1.0, 2.0))


def test_an_end_without_a_number_has_none_when_a_part_is_known() -> None:
    runner, best = priced_rate()
    found = measurements(runner, best, 100, spending(), 80, None, (0.1, best.rate))
    assert found and all(one.replicas_interval[1] is None for one in found)


def test_what_takes_most_of_the_steps_time_is_measured_first() -> None:
    """As the bottleneck is named by the same shares: a time of prompts says little where memory bandwidth is short."""
    runner, best = priced_rate()
    for bound in ("bandwidth", "compute", "link"):
        (first, *_) = measurements(runner, best, 50, spending(bound), 39, 72, (0.7 * best.rate, 1.3 * best.rate))
        assert first.bound == bound and first.part > 0.6


def _need(best: Candidate, name: str, rate: float, pools: Pools | None = None) -> LayoutNeed:
    layout = Layout(name, best, best.config, rate, 2, pools)
    trial = measured("ttft=4000(p99)")[1].capacity.met
    assert trial is not None
    return LayoutNeed(layout, replace(trial, rate=rate), None)


def test_plans_are_ranked_by_price_and_equal_ones_stand_once() -> None:
    _, best = measured("ttft=4000(p99)")
    demand = drawn(8 * best.rate)
    priced = replace(best, machine=replace(best.machine, price_per_hour=2.0))
    large: Machine = replace(priced.machine, name="large", price_per_hour=30.0)
    pools = Pools(1, 1, best.config, Link(1e3, 100.0))
    needs = [_need(priced, CHUNKED, best.rate), _need(priced, DISAGGREGATED, 2 * best.rate, pools)]
    found = ranked(priced, 8, [replace(priced, machine=large), replace(priced, rate=0.0)], needs, demand)
    assert [one.gpus for one in found] == [4, 8, 8]
    assert [one.is_chosen for one in found] == [False, True, False]
    assert [one.engines for one in found] == [(2, 2), (8,), (8,)]
    assert found[1].per_hour == 16.0
    assert found[0].settings["strategy"] == "chunked"
    assert found[0].decode_settings["max-num-seqs"] == best.config.max_num_seqs


@pytest.mark.parametrize("price", [2.95, None])
def test_a_plan_that_is_cheaper_by_noise_does_not_head_the_answer(price: float | None) -> None:
    """As the sentence on layouts, which says that 66 GPUs and 70 serve alike. An exact tenth is no noise, whichever way
    a price is rounded."""
    _, best = measured("ttft=4000(p99)")
    demand, best = drawn(70 * best.rate), replace(best, machine=replace(best.machine, price_per_hour=price))
    for replicas, is_first in ((66, True), (64, True), (63, False)):
        other = replace(best, machine=replace(best.machine, name="other"), rate=70 * best.rate / replicas)
        found = ranked(best, 70, [other], (), demand)
        assert [one.gpus for one in found] == ([70, replicas] if is_first else [replicas, 70])
        assert found[0].is_chosen == is_first


def test_a_cheaper_plan_names_its_settings_and_the_options_that_ask_for_it() -> None:
    _, best = measured("ttft=4000(p99)")
    demand = drawn(8 * best.rate)
    whole = replace(best.config.scheduling, strategy="continuous")
    config = replace(best.config, max_num_seqs=5, max_num_batched_tokens=None, scheduling=whole)
    pair = replace(best, machine=replace(best.machine, name="pair", parallelism=Parallelism(2)))
    quicker = replace(best, rate=2 * best.rate, config=config)
    found = ranked(best, 8, [quicker, replace(pair, rate=best.rate / 2)], (), demand)
    assert [one.asked_by for one in found] == ["--strategy continuous", "", "--tensor-parallel 2"]
    said = sentence("better_plan", plans=found, unit="GPU")
    assert said.startswith("cheapest that was found: 4 replicas of box, continuous, 4 GPUs; each with --strategy")
    assert "--max-num-seqs 5" in said and "policy" not in said
    assert "the same question with --strategy continuous is answered by that layout" in said


def test_what_looks_cheaper_than_the_plan_is_tried_under_the_planned_load() -> None:
    runner, best = measured("ttft=900(p99)")
    flattering = replace(best, rate=4 * best.rate)
    found = confirmed(runner, flattering)
    assert found.rate < flattering.rate and found.gpus(runner.question.demand) > flattering.gpus(runner.question.demand)
    assert not confirmed(runner, flattering, worth=flattering.rate).rate, "no rate that it keeps is of interest"


def test_on_so_many_gpus_plans_are_ranked_by_what_they_serve() -> None:
    runner, best = measured("ttft=4000(p99)")
    question = replace(runner.question, gpus=4, demand=drawn(4 * best.rate))
    slower = replace(best, machine=replace(best.machine, name="pair", gpus=2), rate=best.rate * 1.5)
    large = replace(best, machine=replace(best.machine, name="large", gpus=8))
    found = ranked_on(question, best, [slower, large])
    assert [one.engines for one in found] == [(4,), (2,)]
    assert [one.rate for one in found] == pytest.approx([4 * best.rate, 3 * best.rate])
    assert found[0].is_chosen


def test_on_so_many_gpus_noise_makes_no_other_plan_the_better_one() -> None:
    runner, best = measured("ttft=4000(p99)")
    question = replace(runner.question, gpus=4, demand=drawn(4 * best.rate))
    other = replace(best, machine=replace(best.machine, name="other"))
    for more, is_first in ((1.05, True), (1.15, False)):
        found = ranked_on(question, best, [replace(other, rate=more * best.rate)])
        assert found[0].is_chosen == is_first and len(found) == 2


def test_each_further_trial_of_what_looks_cheaper_has_more_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five percent less of a rate is often that of as many replicas, whose trial is known to miss the SLOs."""
    runner, best = measured("ttft=900(p99)")
    tried: list[float] = []

    def run(self: TrialRunner, candidate: Candidate, rate: float, **more: Any) -> Trial:
        tried.append(self.question.demand.rate / rate)
        slo = self.question.slos[0]
        assert best.capacity.met is not None
        return replace(best.capacity.met, values={slo: 2 * slo.limit})

    monkeypatch.setattr(TrialRunner, "run", run)
    found = confirmed(runner, replace(best, rate=runner.question.demand.rate / 4, capacity=Capacity(None, None, 0)))
    assert tried == pytest.approx([4, 5, 6, 8, 12]) and found.rate == 0.0


def test_trials_that_miss_the_slos_by_chance_do_not_lead_far_below_the_limit() -> None:
    """Where latency hardly rises with the rate, a percent of it is as much as chance, and a line through all counts."""
    best = measured("ttft=900(p99)")[1].capacity.met
    assert best is not None
    slo, tried = next(iter(best.values)), list[float]()

    def unlucky(rate: float) -> Trial:
        tried.append(rate)
        late = 1.02 if len(tried) < 4 else 0.99
        return replace(best, rate=rate, values={slo: late * slo.limit * (rate / 5.0) ** 0.9})

    found = confirmed_rate(5.0, unlucky)
    assert found.rate == tried[-1] >= 4.5 and found.missed is not None


def test_a_rate_may_rest_on_trials_that_all_missed_the_slos_by_a_little() -> None:
    best = measured("ttft=900(p99)")[1].capacity.met
    assert best is not None
    slo = next(iter(best.values))

    def unlucky(rate: float) -> Trial:
        return replace(best, rate=rate, values={slo: max(1.001, rate / 5.0) * slo.limit})

    found = confirmed_rate(5.2, unlucky)
    assert found.met is not None and 4.5 < found.rate < 5.0
    assert confirmed_rate(50.0, lambda rate: replace(best, rate=rate, values={slo: 2 * slo.limit})).rate == 0.0
