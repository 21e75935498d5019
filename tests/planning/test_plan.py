"""Sizing from question to answer, on a machine that is easy to reckon with."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from breadth import first_of
from msgspec import to_builtins

from inflight.metrics.slo import parse_slos
from inflight.planning.candidate import Candidate
from inflight.planning.demand import Demand, Traced, traffic_of
from inflight.planning.infeasible import Infeasible
from inflight.planning.machine import Machine
from inflight.planning.mixture import Mixed
from inflight.planning.outlook import MORE, OF_ANSWERS, OF_ARRIVALS, Change, StrategyNeed, find_change
from inflight.planning.plan import Plan, PlanError, _best, _no_higher_than, as_text, first_sentence, plan
from inflight.planning.proposal import Overrides
from inflight.planning.question import THOROUGHLY, Question
from inflight.planning.rendering import sentence
from inflight.planning.result import InfeasibleResult, plan_result
from inflight.planning.runner_up import expected_trials
from inflight.planning.search import Capacity
from inflight.planning.sensitivity import Measurement
from inflight.planning.simulation import Topology, Trial, percentile_spans, try_out
from inflight.planning.sizing import HEADROOM, POOLED, candidate_for, candidates
from inflight.planning.trial_cache import TrialCache
from inflight.planning.trial_runner import PLANNED_SEED, TrialRunner
from inflight.planning.yardstick import Yardstick
from inflight.workload.arrivals import Poisson
from inflight.workload.classes import Sessions, TrafficClass
from inflight.workload.lengths import Fixed

from .builders import Linear, drawn, machine, workload


def asked(*machines: Machine, rate: float, slo: str = "", **more: Any) -> Question:
    """With fewer requests than usual: these tests look at the course, not at the last percent."""
    return Question(machines=machines, demand=drawn(rate), slos=parse_slos([slo]), requests=(100, 200, 400), **more)


@cache
def answer(rate: float = 20.0, slo: str = "ttft=4000(p99)", **more: Any) -> Plan:
    question = asked(machine(price_per_hour=2.0), rate=rate, slo=slo, **more)
    found = plan(question)
    assert isinstance(found, Plan)
    return found


def test_the_planned_load_meets_the_slos() -> None:
    found = answer()
    assert found.trial.met and found.trial.values[found.question.slos[0]] <= 4.0
    assert found.replicas > 1 and 0.5 < found.utilisation <= 1.0


def found_by_search(
    monkeypatch: pytest.MonkeyPatch, question: Question, searched: dict[str, float], planned: dict[str, float]
) -> Plan:
    """Return the first answer where the search finds these highest rates of machines, and the planned load these."""
    traffic, slo = traffic_of(question.demand), question.slos[0]
    found = [candidate_for(question, traffic, box, question.overrides) for box in question.machines]
    like = try_out(found[0].machine, found[0].config, question.demand.workload(1.0, 60, 0), question.slos)
    met = Capacity(replace(like, values={slo: 1.0}), None, 1)

    def run(runner: TrialRunner, candidate: Candidate, rate: float, **more: Any) -> Trial:
        return replace(like, rate=rate, values={slo: 1.0 if rate <= planned[candidate.machine.name] else 4.5})

    monkeypatch.setattr(TrialRunner, "run", run)
    monkeypatch.setattr("inflight.planning.sizing.candidates", lambda asked, traffic: found)
    monkeypatch.setattr("inflight.planning.sizing.SIMULATED", len(found))
    monkeypatch.setattr(
        "inflight.planning.sizing.measure",
        lambda runner, found, **more: replace(found, rate=searched[found.machine.name], capacity=met),
    )
    monkeypatch.setattr(Candidate, "ceiling", 1000.0)
    monkeypatch.setattr("inflight.planning.plan.CHEAPER_BY", 0.0)  # all are measured
    answer = plan(question, fast=True)
    assert isinstance(answer, Plan)
    return answer


def test_a_machine_that_the_search_found_cheaper_is_tried_under_the_planned_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One GPU meets the SLOs in the search and misses them with the planned seed; two keep them."""
    question = asked(machine(), machine("double", gpus=2), rate=100.0, slo="ttft=4000(p99)")
    found = found_by_search(monkeypatch, question, {"box": 10.2, "double": 19.0}, {"box": 0.0, "double": 19.0})
    assert (found.chosen.machine.name, found.replicas, found.gpus) == ("double", 6, 12)
    assert [(other.machine.name, other.rate) for other in found.others] == [("box", 0.0)]
    text = as_text(found)
    assert "box:" in text and "the planned load misses them" in text and "cheapest" not in text


def test_a_machine_that_the_planned_load_refused_is_named_with_what_that_left_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three look alike in the search: the first is refused, the second too, and the third is planned."""
    names = {"box": 10.2, "second": 10.1, "third": 10.05}
    question = asked(*map(machine, names), rate=100.0, slo="ttft=4000(p99)")
    found = found_by_search(monkeypatch, question, names, {"box": 8.4, "second": 0.0, "third": 10.05})
    assert found.chosen.machine.name == "third" and found.replicas == 10
    left = {one.machine.name: one.rate for one in found.others}
    assert left["second"] == 0.0 and left["box"] < 8.4


def test_machines_are_compared_at_the_rate_that_follows_from_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversations send 50 requests/s where the closed form expects 100: seven GPUs keep the SLOs, or three pairs."""
    question = asked(machine(), machine("double", gpus=2), rate=100.0, slo="ttft=4000(p99)")
    monkeypatch.setattr(
        "inflight.planning.plan.measured_load", lambda question, best: replace(question, demand=drawn(50.0))
    )
    found = found_by_search(monkeypatch, question, {"box": 10.2, "double": 20.5}, {"box": 7.2, "double": 20.5})
    assert (found.chosen.machine.name, found.gpus) == ("double", 6)
    assert [(one.machine.name, one.gpus(found.question.demand)) for one in found.others] == [("box", 7)]


def test_on_so_many_gpus_a_machine_that_the_search_found_to_serve_more_is_tried_under_the_planned_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    question = asked(machine(), machine("other"), rate=1.0, slo="ttft=4000(p99)", gpus=4)
    searched = {"box": 10.0, "other": 9.5}
    refused = found_by_search(monkeypatch, question, searched, {"box": 9.0, "other": 8.0})
    assert refused.chosen.machine.name == "box" and refused.ranked()[0].is_chosen
    assert [one.rate <= 8.0 for one in refused.others] == [True]
    better = found_by_search(monkeypatch, question, searched, {"box": 8.0, "other": 9.5})
    assert better.chosen.machine.name == "other" and better.question.demand.rate == 4 * 9.5
    assert [one.rate <= 8.0 for one in better.others] == [True]


@pytest.mark.parametrize(("rates", "chosen"), [((2.1, 7.0), "double"), ((2.1, 4.5), "box")])
def test_of_as_many_gpus_the_machine_that_serves_clearly_more_is_chosen(rates: tuple[float, ...], chosen: str) -> None:
    question = asked(machine(), machine("double", gpus=2), rate=8.0, slo="ttft=4000(p99)")
    traffic = traffic_of(question.demand)
    usable = [
        replace(candidate_for(question, traffic, box, question.overrides), rate=rate)
        for box, rate in zip(question.machines, rates, strict=True)
    ]
    assert {one.gpus(question.demand) for one in usable} == {4}
    assert _best(usable, question).machine.name == chosen


def test_without_an_slo_the_load_is_a_part_of_what_is_served_and_the_answer_says_so() -> None:
    found = plan(asked(machine(), rate=1.0, gpus=1), fast=True)
    assert isinstance(found, Plan)
    assert found.utilisation == pytest.approx(HEADROOM) == pytest.approx(found.question.demand.rate / found.highest_met)
    text = " ".join(as_text(found).split())
    assert "requests/s are served by 1 GPU" in text and "within the SLOs" not in text
    assert "(85% of the highest rate that is served)" in text and "at most 85% of the highest rate" in text


def test_more_requests_that_miss_the_slos_bound_the_highest_rate() -> None:
    found = answer()
    far = replace(found, chosen=replace(found.chosen, rate=2 * found.chosen.rate, missed_at=None), utilisation=0.5)
    missed = replace(found.trial, values={found.question.slos[0]: 4.5})
    bounded = _no_higher_than(far, [Change(MORE, missed, found.replicas + 1)])
    assert bounded.utilisation == pytest.approx(1 / 1.2)
    assert bounded.chosen.highest == pytest.approx(1.2 * 20.0 / found.replicas)
    assert f"(83% of {24 / found.replicas:.3g} requests/s, at which an SLO is missed)" in as_text(bounded)
    assert _no_higher_than(far, [Change(MORE, found.trial, found.replicas)]) is far
    (headroom,) = (one for one in bounded.warnings if "headroom" in one)
    assert (
        found.replicas < 6 and f"missed at {24 / found.replicas:.4g}" in headroom and "found to be met" not in headroom
    )
    result = to_builtins(plan_result(bounded))
    assert result["highest_rate_per_replica"] == pytest.approx(20 / found.replicas)  # which met, below the miss
    assert result["missed_at"] == pytest.approx(24 / found.replicas)
    assert to_builtins(plan_result(far))["highest_rate_per_replica"] == 2 * found.chosen.rate
    assert any("it is 4,500 ms" in one for one in bounded.bottleneck.sentences)


def test_an_answer_that_misses_its_slos_says_so() -> None:
    found = answer()
    missed = replace(found, trial=replace(found.trial, values={found.question.slos[0]: 4.5}))
    assert "not surely enough: in the last trial TTFT p99 is 4,500 ms" in as_text(missed)
    assert "not surely enough" not in as_text(found)


def test_an_added_replica_leaves_room_up_to_where_the_slos_were_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicas at 10 requests/s each meet them in the search, and miss them with the planned seed."""
    question = asked(machine(), rate=20.0, slo="ttft=4000(p99)")
    traffic, slo = traffic_of(question.demand), question.slos[0]
    one = replace(candidate_for(question, traffic, question.machines[0], question.overrides), rate=10.2)
    like = try_out(one.machine, one.config, question.demand.workload(1.0, 60, 0), question.slos)

    def run(runner: TrialRunner, candidate: Candidate, rate: float, **more: Any) -> Trial:
        return replace(like, rate=rate, values={slo: 1.0 if rate < 8 else 4.5})

    monkeypatch.setattr(TrialRunner, "run", run)
    monkeypatch.setattr("inflight.planning.sizing.measure", lambda runner, candidate, **more: one)
    found = plan(question, fast=True)
    assert isinstance(found, Plan) and found.replicas == 3 and found.chosen.rate == pytest.approx(20 / 3)
    assert found.utilisation == pytest.approx(2 / 3)
    assert "(67% of 10 requests/s, at which an SLO is missed)" in as_text(found)
    (headroom,) = (sentence for sentence in found.warnings if "headroom" in sentence)
    assert "each other one gets 10 requests/s, and an SLO was found to be missed at 10; 4 replicas bear" in headroom


def test_the_closed_form_is_not_far_off() -> None:
    """A token takes a millisecond, prompts and answers alike; the rest is a share of steps and room for waiting."""
    found = answer()
    most = 1 / (1e-3 * (found.traffic.input_mean + found.traffic.output_mean))
    assert 0.5 * most < found.chosen.rate < most


def test_the_interval_holds_the_answer() -> None:
    found = answer()
    assert found.replicas_high is not None
    assert found.replicas_low <= found.replicas <= found.replicas_high
    assert found.replicas_low < found.replicas_high
    for name, spans in found.spans.items():
        for (low, high), value in zip(spans, found.trial.percentiles[name], strict=True):
            assert low <= value <= high


def test_the_rates_of_the_interval_are_those_of_its_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short trial at the slow end may meet what the planned load misses there."""
    monkeypatch.setattr("inflight.planning.refinement.rate_under", lambda runner, best, model, planned: best.rate)
    found = plan(asked(machine(), rate=20.0, slo="ttft=1200(p99)"))
    assert isinstance(found, Plan) and found.replicas_high is not None and found.replicas_high > found.replicas
    assert found.rates[0] / found.replicas == pytest.approx(20.0 / found.replicas_high)


def test_an_end_with_the_usual_steps_is_the_answer_itself() -> None:
    """Ends are found in short trials, which are read beside the planned load's."""
    same = Linear(0.1, 1e-3)
    found = plan(asked(machine(cases=(same, same)), rate=100.0, slo="ttft=4000(p99)"))
    assert isinstance(found, Plan) and found.replicas_high is not None
    assert found.replicas_high <= 1.06 * found.replicas + 1 and found.replicas_low >= found.replicas / 1.06 - 1
    for spans, own in ((found.spans[name], found.trial.percentiles[name]) for name in ("ttft", "e2e")):
        assert all(low == pytest.approx(value) == high for (low, high), value in zip(spans, own, strict=True))


def test_a_trial_of_the_planned_load_is_read_as_the_long_one() -> None:
    question = asked(machine(), rate=20.0, slo="ttft=4000(p99)")
    runner = TrialRunner(question, traffic_of(question.demand))
    one = candidates(question, runner.traffic)[0]
    long, short = (runner.run(one, 2.0, seed=2, reads=reads) for reads in (3.0, 1.0))
    read = Yardstick.of(long, short).read(short)
    assert read.values == pytest.approx(long.values) and short.values != pytest.approx(long.values)
    assert Yardstick({}, {}).read(short) == short
    harder = runner.run(one, 2.2, seed=2)
    seen = Yardstick.of(long, short).read(harder)
    assert all(list(found) == sorted(found) for found in seen.percentiles.values())
    assert seen.values[question.slos[0]] <= 1.0001 * seen.percentiles["ttft"][-1]
    assert Yardstick.of(long, short).read(replace(harder, queue_grows=True)) == replace(harder, queue_grows=True)


@pytest.mark.parametrize(("workers", "stored"), [(1, False), (8, False), (8, True)])
def test_the_short_trial_that_others_are_read_by_runs_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: int, stored: bool
) -> None:
    """However many processes begin at once."""
    usual, file = TrialRunner.run, tmp_path / "runs"

    def run(self: TrialRunner, candidate: Candidate, rate: float, **more: Any) -> Trial:
        if more == {"seed": PLANNED_SEED, "model": None, "demand": None, "reads": 1.0}:
            with file.open("a") as runs:
                runs.write("short\n")
        return usual(self, candidate, rate, **more)

    monkeypatch.setattr(TrialRunner, "run", run)
    question, cache = asked(machine(), rate=20.0, slo="ttft=4000(p99)"), TrialCache(tmp_path / "cache")
    found = plan(question, workers=workers, cache=cache if stored else None)
    assert isinstance(found, Plan) and found.trial.met and len(found.changes) == 4
    assert file.read_text() == "short\n"


def test_latencies_have_no_upper_end_where_a_queue_grows() -> None:
    """A short run of it has latencies of its length, which may be below those of the long one that was planned."""
    found = answer()
    slow = replace(found.trial, percentiles=dict.fromkeys(found.trial.percentiles, (0.2, 0.3, 0.4)))
    usual = found.trial.percentiles["ttft"]
    assert percentile_spans([found.trial, slow])["ttft"] == tuple(map(sorted_pair, usual, (0.2, 0.3, 0.4)))
    spans = percentile_spans([found.trial, replace(slow, queue_grows=True)])
    assert spans["ttft"] == tuple((value, math.inf) for value in usual)
    text = as_text(replace(found, spans=spans))
    assert f"{usual[0] * 1e3:,.0f} ({usual[0] * 1e3:,.0f}-∞)" in text
    assert plan_result(replace(found, spans=spans)).latency_s["ttft"]["p50"].high is None  # type: ignore[union-attr]


def sorted_pair(one: float, other: float) -> tuple[float, float]:
    return min(one, other), max(one, other)


@pytest.mark.wide
def test_a_slow_end_that_misses_the_slo_has_no_number() -> None:
    slow, fast = Linear(5.0, 1e-3), Linear(0.08, 0.8e-3)
    found = plan(asked(machine(cases=(slow, fast)), rate=10.0, slo="ttft=4000(p99)"))
    assert isinstance(found, Plan) and found.replicas_high is None
    assert "at its slow end no number of them meets the SLOs" in as_text(found)
    assert to_builtins(plan_result(found))["replicas_interval"] == (found.replicas_low, None)


@pytest.mark.wide
def test_more_traffic_takes_more_replicas() -> None:
    assert answer(60.0).replicas > 2 * answer(20.0).replicas


@pytest.mark.wide
def test_what_is_read_holds_in_a_long_run_too() -> None:
    """Neither a filling nor a draining batch is read."""
    question = asked(machine(), rate=4.0, slo="ttft=6000(p90)")
    traffic = traffic_of(question.demand)
    candidate = candidate_for(question, traffic, question.machines[0], question.overrides)
    short = TrialRunner(question, traffic).run(candidate, 4.0, topology=Topology())
    offered = question.demand.workload(4.0, 3000, 77)
    long = try_out(candidate.machine, candidate.config, offered, question.slos, measured=(0.1, 0.95))
    assert short.spent.rows == pytest.approx(long.spent.rows, rel=0.2)
    assert short.percentiles["tpot"][0] == pytest.approx(long.percentiles["tpot"][0], rel=0.15)


@pytest.mark.wide
def test_many_replicas_are_simulated_few_at_a_time_and_that_is_said() -> None:
    found = plan(replace(asked(machine(), rate=0.0001, slo="ttft=2000"), demand=drawn(60.0, answer="lognormal:5:10")))
    assert isinstance(found, Plan)
    assert found.replicas > POOLED and found.trial.replicas == POOLED and found.extrapolated
    assert f"{POOLED} replicas behind a least-loaded router were simulated" in as_text(found)
    assert f"; {found.replicas:,} are that many times as much" in as_text(found)


def test_a_plan_on_one_gpu_has_a_runner_up() -> None:
    small, large = machine(price_per_hour=2.0), machine("pair", speed=1.5, gpus=2, price_per_hour=4.0)
    found = plan(asked(small, large, rate=2.0, slo="ttft=4000(p99)"))
    assert isinstance(found, Plan) and found.gpus == 1
    assert [(one.name, one.gpus) for one in found.ranked()] == [("box, chunked", 1), ("pair, chunked", 2)]
    assert "runner-up: 1 replica of pair, chunked, 2 GPUs, 4.00 $/h" in as_text(found)
    far = plan(asked(small, machine("four", speed=1.5, gpus=4, price_per_hour=8.0), rate=2.0, slo="ttft=4000(p99)"))
    for found in (far, answer(2.0)):
        assert isinstance(found, Plan)
        assert [one.name for one in found.ranked()] == ["box, chunked", "box, continuous"]


def test_trials_that_run_ahead_are_those_that_the_next_plan_takes(tmp_path: Path) -> None:
    question = asked(machine(), machine("four", speed=1.5, gpus=4, price_per_hour=8.0), rate=20.0, slo="ttft=4000(p99)")
    ahead, alone, traffic = TrialCache(tmp_path / "ahead"), TrialCache(tmp_path / "alone"), traffic_of(question.demand)
    expected_trials(TrialRunner(question, traffic, ahead), candidates(question, traffic))
    ran = {path.name for path in (tmp_path / "ahead").iterdir()}
    assert plan(question, cache=ahead) == plan(question, cache=alone)
    assert len(ran) > 1 and ran < {path.name for path in (tmp_path / "alone").iterdir()}


def test_small_demand_takes_one_replica_and_no_router() -> None:
    found = answer(2.0)
    assert found.replicas == 1 and found.trial.replicas == 1 and not found.extrapolated
    assert any("One replica has no spare" in sentence for sentence in found.warnings)


def test_cost_follows_from_price_and_tokens() -> None:
    found = answer()
    assert found.cost is not None
    assert found.cost.per_hour == 2.0 * found.replicas
    tokens = 20.0 * 3600 * found.traffic.output_mean
    assert found.cost.per_million_output == pytest.approx(found.cost.per_hour / tokens * 1e6)
    assert found.cost.per_million_tokens < found.cost.per_million_output
    assert found.cost.mean_per_million_output == found.cost.per_million_output


def test_hours_that_are_not_busy_are_paid_for_too() -> None:
    rows = [(20.0 * k, 100, 20) for k in range(90)] + [(1800.0 + 0.5 * k, 100, 20) for k in range(600)]
    question = replace(
        asked(machine(price_per_hour=2.0), rate=1.0, slo="ttft=6000"), demand=Traced(workload(*rows), 2.0)
    )
    found = plan(question)
    assert isinstance(found, Plan) and found.cost is not None
    factor = 2.0 / found.question.demand.mean_rate
    assert factor > 1.5
    assert found.cost.mean_per_million_output == pytest.approx(factor * found.cost.per_million_output)
    assert "at the trace's mean of" in as_text(found)


def test_changes_say_what_they_would_take() -> None:
    found = answer()
    names = [change.name for change in found.changes]
    assert names[0] == "20 % more requests" and len(names) == 4
    for change in found.changes:
        if change.trial.met:
            assert change.replicas == found.replicas
        else:
            assert change.replicas is None or change.replicas >= found.replicas


def changed(
    monkeypatch: pytest.MonkeyPatch, name: str, highest: float, demand: Demand | None = None
) -> tuple[Change, list[dict[str, Any]]]:
    """Return what a change takes of 40 replicas, where up to a rate SLOs are met, and how trials were asked for."""
    question = asked(machine(), rate=100.0, slo="ttft=4000(p99)")
    question = replace(question, demand=demand or question.demand)
    traffic, slo = traffic_of(question.demand), question.slos[0]
    one = candidate_for(question, traffic, question.machines[0], question.overrides)
    like, tried = try_out(one.machine, one.config, question.demand.workload(1.0, 60, 0), question.slos), []

    def run(runner: TrialRunner, candidate: Candidate, rate: float, **more: Any) -> Trial:
        tried.append(more)
        return replace(like, rate=rate, replicas=candidate.pooled, values={slo: 4.0 * rate / highest})

    monkeypatch.setattr(TrialRunner, "run", run)
    best = replace(one, rate=2.6, pooled=3)
    return find_change(TrialRunner(question, traffic), best, 40, name, Yardstick({}, {})), tried


def test_the_need_of_other_traffic_is_looked_for_from_how_far_it_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    change, tried = changed(monkeypatch, OF_ANSWERS, 2.3)
    assert len(tried) == 2
    assert change.replicas is not None and 100 / 2.3 <= change.replicas <= 1.25 * 100 / 2.3


def test_clumps_that_the_router_spreads_are_no_other_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 40 replicas has the gaps that it has without, so that the trial of the planned load is read."""
    _, (trial,) = changed(monkeypatch, OF_ARRIVALS, 2.6)
    assert trial["demand"] == drawn(100.0)
    _, (trial,) = changed(monkeypatch, OF_ARRIVALS, 2.6, drawn(100.0, gap_variation=8.0))
    assert trial["demand"] == drawn(100.0, gap_variation=32.0)


def test_conversations_under_other_traffic_are_tried_as_long_as_under_the_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They warm up slowly: a short trial may miss by less at a higher rate."""
    sessions = Sessions(turns=Fixed(5), think_s=2.0, added=Fixed(60))
    of_turns = TrafficClass(name="agents", input=Fixed(100), output=Fixed(20), share=1, sessions=sessions)
    for demand, reads in ((Mixed.of([of_turns], Poisson(25.0)), THOROUGHLY), (drawn(100.0), 1.0)):
        _, (trial,) = changed(monkeypatch, MORE, 0.1, demand)
        assert (trial["seed"], trial.get("reads")) == (PLANNED_SEED, reads)


def test_the_row_of_a_strategy_has_the_latencies_that_the_slos_are_about() -> None:
    question = asked(machine(), rate=2.0, slo="ttft=4000(p99),itl=150(p99)")
    one = candidate_for(question, traffic_of(question.demand), machine(), question.overrides)
    trial = try_out(one.machine, one.config, question.demand.workload(1.0, 60, 0), question.slos)
    values = dict(zip(question.slos, (1.2, 0.14), strict=True))
    need = StrategyNeed("chunked", replace(one, rate=1.0, capacity=Capacity(replace(trial, values=values), None, 1)))
    shown = sentence("strategy_need", need=need, demand=question.demand)
    assert shown == "2 replicas (1 requests/s each; there TTFT p99 1,200 ms, own ITL p99 140 ms)"


@pytest.mark.wide
def test_the_same_question_has_the_same_answer() -> None:
    assert plan_result(plan(answer().question)) == plan_result(answer())


@pytest.mark.wide
@pytest.mark.parametrize(("speed", "gpus"), [(3.0, 2), (1.4, 1)])
def test_the_cheaper_machine_is_chosen(speed: float, gpus: int) -> None:
    """Twice the GPUs for less than twice the speed are not worth it, for more than twice they are."""
    machines = (machine("one", gpus=1), machine("two", gpus=2, speed=speed))
    found = plan(asked(*machines, rate=30.0, slo="ttft=4000"))
    assert isinstance(found, Plan) and found.chosen.machine.gpus == gpus
    assert len(found.others) == 1


def test_a_machine_that_its_bound_rules_out_is_not_simulated() -> None:
    """Twice the GPUs at the same speed serve at most what one does."""
    machines = (machine("one", gpus=1), machine("two", gpus=2, speed=1.0))
    stages: list[str] = []
    found = plan(asked(*machines, rate=30.0, slo="ttft=4000"), fast=True, progress=stages.append)
    assert isinstance(found, Plan) and found.chosen.machine.name == "one"
    assert [one.machine.name for one in found.others] == ["two"] and not found.others[0].capacity.trials
    assert not any("two" in one for one in stages)
    assert "requests/s per replica in a steady state, at which it would not be cheaper." in as_text(found)


def test_limits_are_advised_that_one_machine_meets() -> None:
    """No machine may have one's first tokens and another's further ones."""
    found = answer(2.0)
    first, second = parse_slos(["ttft=1000(p99),tpot=10(p99)"])
    question = replace(found.question, slos=(first, second))
    values = {"quick": {first: 2.0, second: 0.08}, "steady": {first: 6.0, second: 0.02}}
    tried = [
        replace(found.chosen, machine=machine(name), capacity=Capacity(None, replace(found.trial, values=each), 3))
        for name, each in values.items()
    ]
    nowhere = Infeasible(question, found.traffic, tried)
    assert nowhere.advice == "ttft=7500(p99),tpot=25(p99)"
    assert "(a quarter above the best of steady, which leaves room for load)" in " ".join(as_text(nowhere).split())


@pytest.mark.parametrize(
    ("stopped", "said"),
    [
        (True, "/s per replica, from which it would be cheaper, TTFT p99 is"),
        (False, "meets the SLOs at no rate: even at"),
    ],
)
def test_a_machine_that_misses_the_slos_is_said_to_at_no_rate_or_where_it_pays(stopped: bool, said: str) -> None:
    found = answer(2.0)
    missed = replace(found.trial, values={found.question.slos[0]: 1e3})
    other = replace(found.chosen, machine=machine("small"), rate=0.0, capacity=Capacity(None, missed, 3, stopped))
    assert said in " ".join(as_text(replace(found, others=[other])).split())


@pytest.mark.wide
def test_impossible_slos_are_answered_with_what_is_possible() -> None:
    question = asked(machine(), rate=2.0, slo="ttft=5(p99)")
    found = plan(question)
    assert isinstance(found, Infeasible)
    text = as_text(found)
    assert "No number of replicas meets TTFT p99 ≤ 5 ms: TTFT p99 is " in text and " times its limit (box)" in text
    assert "e+" not in as_text(plan(asked(machine(), rate=2.0, slo="ttft=0.1(p99)")))
    result = plan_result(found)
    assert isinstance(result, InfeasibleResult) and result.missed is not None
    assert result.missed.machine == "box" and result.missed.times_the_limit == pytest.approx(result.missed.value / 5e-3)
    advised = text.partition("--slo ")[2].partition(" ")[0]
    (slo,) = parse_slos([advised])
    assert 0.1 < slo.limit < 2
    assert isinstance(plan(asked(machine(), rate=2.0, slo=advised)), Plan)
    assert plan_result(found).possible is False


@pytest.mark.wide
def test_without_slos_throughput_is_sized_with_headroom() -> None:
    found = plan(asked(machine(), rate=20.0))
    assert isinstance(found, Plan) and not found.trial.saturated
    assert any("There is no SLO" in sentence for sentence in found.warnings)


def test_a_model_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(PlanError, match="fit on none of: box holds 160 tokens"):
        plan(asked(machine(blocks=10), rate=20.0))


@pytest.mark.wide
def test_too_little_memory_is_the_bottleneck() -> None:
    found = plan(asked(machine(blocks=64), rate=20.0, slo="ttft=20000"))
    assert isinstance(found, Plan) and found.bottleneck.bound == "KV"
    assert "KV memory holds" in " ".join(found.bottleneck.sentences)


@pytest.mark.wide
def test_strategies_are_compared_for_the_same_slos() -> None:
    question = asked(machine(), rate=20.0, slo="ttft=6000(p99)")
    found = plan(question, strategies=True)
    assert isinstance(found, Plan)
    by_name = {one.strategy: one.candidate for one in found.strategies}
    assert set(by_name) == {"static", "dynamic", "continuous", "chunked", "adaptive", "slack"}
    static, chunked = by_name["static"], by_name["chunked"]
    assert static is not None and chunked is not None and static.rate < chunked.rate
    assert by_name["adaptive"] is None
    text = as_text(found)
    assert "not tried: it needs an SLO on ITL" in text


@pytest.mark.wide
def test_every_stage_is_reported_and_the_first_answer_is_refined() -> None:
    stages: list[str] = []
    first: list[Plan] = []
    found = plan(answer(2.0).question, progress=stages.append, first=first.append)
    assert stages[0] == "1 of 3: box: the highest rate that meets the SLOs"
    assert stages[1].startswith("2 of 3: the planned load") and len(stages) == 3 + 11
    assert stages[2].startswith("3 of 3: trials several times as long near its rate")
    assert stages[-1].startswith("11 of 11: ") and any("changed traffic: 20 % more requests" in one for one in stages)
    assert isinstance(found, Plan) and not first[0].changes
    assert first[0].replicas == found.replicas
    assert found.trial.summary.requests > first[0].trial.summary.requests
    assert first_sentence(first[0]).startswith("First answer: 1 replica of box, TTFT p99 ")


@pytest.mark.wide
def test_the_answer_does_not_depend_on_the_processes() -> None:
    assert plan_result(plan(answer().question, workers=3)) == plan_result(answer())


def test_a_fast_answer_has_the_size_and_nothing_that_refines_it() -> None:
    found = plan(answer(2.0).question, fast=True)
    assert isinstance(found, Plan) and found.is_first and found.replicas == answer(2.0).replicas
    assert not found.changes and plan_result(found).replicas_interval is None  # type: ignore[union-attr]
    text = as_text(found)
    assert "from a few short trials: leave --fast out for the interval" in text and "What would change it" not in text
    assert "interval: " not in text and "(from, to" not in text


def test_an_answer_that_a_cheaper_plan_heads_says_of_which_layout_the_rest_is() -> None:
    found = answer(2.0)
    cheaper = replace(found.chosen, machine=machine("small", price_per_hour=1.0))
    head, _, rest = as_text(replace(found, others=[cheaper])).partition("\n1 replica of box")
    assert head.startswith("cheapest that was found: 1 replica of small, chunked, 1 GPU, 1.00 $/h; each with ") and rest
    assert head.replace("\n    ", " ").endswith(". The rest of this answer is of the layout below, box, chunked.")


@pytest.mark.parametrize(("left", "said"), [((3, 3), "become 3; 5 to"), ((3, 4), "become 3 to 4; 5 to")])
def test_what_a_measurement_leaves_of_the_interval_is_a_sentence(left: tuple[int, int], said: str) -> None:
    found, one = answer(), Measurement("launch", 0.4, left, (4.0, 6.0))
    text = as_text(
        replace(found, measurements=[one], replicas_low=2, replicas_high=5, rates=(5.0 * found.replicas, 99))
    )
    assert said in " ".join(text.split())


def test_the_text_has_all_that_was_asked_for() -> None:
    text = as_text(answer())
    for part in (
        "replicas of box",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "blocks: at most",
        "TTFT",
        "ITL",
        "E2E",
        "$ per million output tokens",
        "Bottleneck:",
        "What would change it:",
        "Basis:",
        "p99 rests on",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("slo", "fewest"), first_of([("ttft=4000(p95)", 110), ("itl=900(p50)", 563), ("ttft=4000(p99)", 563)], 2)
)
def test_what_decides_rests_on_as_many_requests_as_its_percentile_needs(slo: str, fewest: int) -> None:
    question = replace(asked(machine(), rate=20.0, slo=slo), requests=None)
    traffic = traffic_of(question.demand)
    runner, candidate = (
        TrialRunner(question, traffic),
        candidate_for(question, traffic, question.machines[0], question.overrides),
    )
    for rate in (0.1 * candidate.guess, candidate.guess):
        assert runner.run(candidate, rate, topology=Topology()).summary.offered >= fewest


@pytest.mark.wide
def test_fixed_settings_are_kept_and_judged() -> None:
    found = answer(4.0, overrides=Overrides(max_num_seqs=100, max_num_batched_tokens=128))
    assert found.config.max_num_seqs == 100 and found.config.max_num_batched_tokens == 128
