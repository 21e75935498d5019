"""Demand of classes and conversations: its rate, its figures, and what it is sized by."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from inflight.metrics.slo import SloError, parse_slos
from inflight.planning import mixture
from inflight.planning.candidate import Candidate
from inflight.planning.demand import traffic_of
from inflight.planning.engine_config import EngineConfig
from inflight.planning.infeasible import Infeasible
from inflight.planning.load import _balanced
from inflight.planning.machine import Machine
from inflight.planning.mixture import Mixed, steady_rate
from inflight.planning.outlook import CHANGES, MORE, OF_ANSWERS, changes_of
from inflight.planning.plan import Plan, PlanError, as_text, plan
from inflight.planning.planned_load import confirmed
from inflight.planning.question import Question
from inflight.planning.result import PlanResult, plan_result
from inflight.planning.separation import class_names
from inflight.planning.simulation import Trial, simulate_run, try_out
from inflight.planning.sizing import candidate_for, measure
from inflight.planning.slos import check_slos
from inflight.planning.trial_requests import requests_for
from inflight.planning.trial_runner import TrialRunner
from inflight.planning.yardstick import beside
from inflight.workload.arrivals import AtOnce, Constant, Poisson, Ramp
from inflight.workload.classes import Sessions, SharedPrefixes, TrafficClass
from inflight.workload.lengths import Fixed, Lognormal
from inflight.workload.workload import Workload, WorkloadError

from .builders import drawn, machine

CHAT = TrafficClass(
    name="chat", share=3, input=Lognormal(50, 200), output=Fixed(20), prefix=SharedPrefixes(system_tokens=64)
)
BATCH = TrafficClass(name="batch", share=1, input=Fixed(100), output=Fixed(10), lane="batch")
AGENT = TrafficClass(
    name="agent",
    share=1,
    input=Fixed(200),
    output=Fixed(20),
    sessions=Sessions(turns=Fixed(5), think_s=2.0, added=Fixed(60)),
)


def test_shares_and_own_arrivals_make_one_rate() -> None:
    mixed = Mixed.of([CHAT, BATCH], Poisson(4.0))
    assert mixed.rate == pytest.approx(4.0)
    assert mixed.share_of("chat") == pytest.approx(0.75)
    assert mixed.share_of("") == 1.0
    own = TrafficClass(name="own", arrivals=Constant(1.0), input=Fixed(10), output=Fixed(10))
    both = Mixed.of([CHAT, own], Poisson(4.0))
    assert both.rate == pytest.approx(5.0) and both.share_of("own") == pytest.approx(0.2)
    assert Mixed.of([own], None).rate == pytest.approx(1.0)


def test_turns_are_requests_and_conversations_are_open_by_littles_law() -> None:
    mixed = Mixed.of([AGENT], Poisson(2.0))
    assert mixed.rate == pytest.approx(10.0)
    assert mixed.conversations.seconds(1.0) == pytest.approx(4 * 2.0 + 5 * 1.0)
    assert mixed.conversations.open_at(10.0, 1.0) == pytest.approx(2.0 * 13.0)
    assert mixed.warm_up_requests(10.0, 10.0, 1.0) > mixed.warm_up_requests(10.0, 10.0, 0.1) > 10.0
    assert Mixed.of([CHAT], Poisson(2.0)).warm_up_requests(2.0, 10.0, 1.0) == 0


def test_a_run_begins_with_open_conversations_at_turns_of_chance() -> None:
    mixed = Mixed.of([AGENT], Constant(2.0))
    entries = mixed.started(1.0).workload(10.0, 300, 0).entries
    firsts = [one for one in entries if one.after is None]
    opened = [one for one in firsts if one.arrival < 13.0 / 5]
    assert len(opened) == pytest.approx(26 + 5, abs=2)  # by Little's law, and those that begin meanwhile
    assert len({one.prompt_tokens for one in opened}) > 3
    for index, one in enumerate(entries):
        assert one.after is None or (one.after == index - 1 and one.session == entries[index - 1].session)
    assert mixed.started(1.0).workload(10.0, 300, 0).until == pytest.approx(30.0)
    chat = Mixed.of([CHAT], Poisson(2.0))
    assert chat.started(1.0) is chat


@pytest.mark.parametrize("rate", [0.5, 3.0])
def test_a_replica_gets_the_rate_that_was_asked_for(rate: float) -> None:
    made = Mixed.of([CHAT, AGENT], Poisson(2.0)).workload(rate, 500, 1)
    span = made.entries[-1].arrival - made.entries[0].arrival
    assert (len(made.entries) - 1) / span == pytest.approx(rate)
    assert made.entries == Mixed.of([CHAT, AGENT], Poisson(2.0)).workload(rate, 500, 1).entries


def test_what_later_turns_compute_is_what_they_add() -> None:
    traffic = traffic_of(Mixed.of([AGENT], Poisson(2.0)))
    assert traffic.shared > 0.5
    assert traffic.long_prompt() < traffic.input.p99  # type: ignore[operator]
    assert traffic.gap_variation == pytest.approx(1.0, abs=0.3)
    classes = traffic_of(Mixed.of([CHAT, BATCH], Poisson(2.0)))
    assert classes.long_prompt("batch") == 100
    assert classes.long_prompt() == classes.fresh.p99
    assert [classes.long_prompt(share=one) for one in (0.5, 0.9, 0.95, 0.99)] == [
        classes.fresh.p50,
        classes.fresh.p95,
        classes.fresh.p95,
        classes.fresh.p99,
    ]


def test_lengths_are_stretched_and_long_turns_end_a_conversation() -> None:
    mixed = Mixed.of([AGENT], Poisson(2.0), longest=1000)
    many = replace(CHAT, share=12)
    entries = Mixed.of([many, AGENT], Poisson(2.0), longest=500).workload(2.0, 400, 0).entries
    assert all(one.prompt_tokens + one.output_tokens <= 500 for one in entries)
    assert all(one.after is None or entries[one.after].session == one.session for one in entries)
    longer = Mixed(mixed.classes, 10.0, stretch=1.5).workload(2.0, 200, 0)
    assert longer.entries[0].output_tokens == 30
    stretched = replace(Mixed.of([many, AGENT], Poisson(2.0), longest=500), prompt_stretch=1.5)
    assert all(one.prompt_tokens <= 500 for one in stretched.workload(2.0, 400, 0).entries)
    with pytest.raises(WorkloadError, match="more than the 300 tokens"):
        Mixed.of([AGENT], Poisson(2.0), longest=300).workload(2.0, 200, 0)


@pytest.mark.parametrize("coming", [AtOnce(), Ramp(1, 2, 10)])
def test_arrivals_without_a_steady_rate_are_refused(coming: AtOnce | Ramp) -> None:
    with pytest.raises(WorkloadError, match="no steady random process"):
        steady_rate(coming)


def test_a_rate_is_given_where_shares_need_one_and_only_there() -> None:
    with pytest.raises(WorkloadError, match="give --rate"):
        Mixed.of([CHAT], None)
    own = TrafficClass(name="own", arrivals=Constant(1.0), input=Fixed(10), output=Fixed(10))
    with pytest.raises(WorkloadError, match="leave --rate"):
        Mixed.of([own], Poisson(1.0))


def test_an_slo_of_a_class_is_about_its_requests_alone() -> None:
    (slo,) = parse_slos(["chat.ttft=500(p95)"])
    assert (slo.traffic, slo.limit, slo.share) == ("chat", 0.5, 0.95) and str(slo) == "chat: TTFT p95 ≤ 500 ms"
    check_slos(parse_slos(["chat.ttft=500(p50),batch.ttft=300(p99)"]))
    with pytest.raises(SloError, match="two limits"):
        parse_slos(["chat.ttft=500,chat.ttft=300"])
    assert requests_for([slo], {"chat": 0.1}).decisive == pytest.approx(10 * requests_for([slo]).decisive, rel=0.02)


def test_advice_on_an_slo_of_a_class_names_it() -> None:
    demand = Mixed.of([CHAT, BATCH], Poisson(4.0), 8192)
    question = Question(
        machines=[machine()], demand=demand, slos=parse_slos(["chat.ttft=5(p95)"]), requests=(100, 200, 400)
    )
    found = plan(question, fast=True)
    assert isinstance(found, Infeasible)
    (slo,) = parse_slos([found.advice])
    assert (slo.traffic, slo.metric, slo.share) == ("chat", "ttft", 0.95) and slo.limit > 0.1


@cache
def agents() -> Plan:
    demand = Mixed.of([AGENT], Constant(1.0), 8192)
    demand = Mixed(demand.classes, 1.0, 0.0, sessions=60.0, longest=8192)
    question = Question(
        machines=[machine(price_per_hour=2.0)],
        demand=demand,
        slos=parse_slos(["ttft=3000(p90)"]),
        requests=(100, 200, 400),
    )
    found = plan(question, fast=True)
    assert isinstance(found, Plan)
    return found


def test_open_conversations_decide_the_rate() -> None:
    found = agents()
    demand, e2e = found.question.demand, found.trial.summary.e2e.mean
    assert isinstance(demand, Mixed) and e2e is not None
    assert demand.conversations.open_at(demand.rate, e2e) == pytest.approx(60.0, rel=0.02)
    assert found.trial.rate == pytest.approx(demand.rate / found.replicas)
    assert found.trial.cached > 0.5 and found.router == "prefix-aware"
    text = as_text(found)
    each = demand.conversations.seconds(e2e)
    assert f"in conversations of 5 turns, 60 open at once, {each:,.0f} s each on average;" in text
    assert f"Expected at {found.trial.rate:.3g} requests/s per replica" in text


def test_as_many_conversations_are_open_in_a_run_as_are_asked_for() -> None:
    """They are counted, and their requests, too: answers that come sooner or later than expected change the rate."""
    for slowdown in (0.3, 1.0, 2.0):
        demand = replace(Mixed.of([AGENT], Constant(1.0), 8192), sessions=12.0, slowdown=slowdown).started(4.0)
        offered = demand.workload(2.0, 200, 0)
        assert offered.until is not None
        run = simulate_run(
            machine(), EngineConfig(max_num_seqs=64, max_num_batched_tokens=512), offered, machine().model
        )
        sent = [one for one in run.observations if one.sent is not None]
        times = [offered.until * part for part in (0.3, 0.6, 0.9)]
        last = _last_turns(offered)
        ends = {index: run.observations[last[index]] for index in last}
        open_at = [
            sum(
                run.observations[index].sent is not None
                and run.observations[index].intended <= at
                and (end.sent is None or at < end.ended)
                for index, end in ends.items()
            )
            for at in times
        ]
        assert open_at == [offered.sessions] * 3
        settled = [one for one in sent if one.intended > times[0]]
        e2e = sum(one.ended - one.intended for one in settled) / len(settled)
        rate = len(settled) / (offered.until - times[0])
        assert demand.reached(2.0, e2e, sent=9.0) == pytest.approx(rate, rel=0.1)


def test_what_conversations_at_a_rate_sent_counts() -> None:
    """As many are open at the beginning as the closed form expects, and others begin at their rate whatever happens."""
    demand = Mixed.of([AGENT], Constant(1.0), 8192)
    assert demand.reached(2.0, 5.0, sent=2.3) == 2.0, "none is open at the beginning"
    assert demand.started(4.0).reached(2.0, 5.0, sent=2.3) == 2.3


def test_as_many_conversations_are_open_at_the_ends_and_under_other_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted; slower answers mean fewer requests, and no more conversations."""
    found, opened = agents(), list[int | None]()

    def noted(machine: Machine, config: EngineConfig, offered: Workload, *more: Any, **others: Any) -> Trial:
        opened.append(offered.sessions)
        return try_out(machine, config, offered, *more, **others)

    monkeypatch.setattr("inflight.planning.trial_runner.try_out", noted)
    runner = TrialRunner(found.question, found.traffic)
    share = found.question.demand.rate / found.replicas
    slow = beside(runner, found.chosen, share, model=found.chosen.machine.cases[0])
    long = beside(runner, found.chosen, share, demand=CHANGES[OF_ANSWERS](found.question.demand))
    each = 60 / found.replicas
    assert opened == [pytest.approx(each * min(found.chosen.pooled, found.replicas), abs=1)] * 2
    assert slow.rate < found.trial.rate and long.rate < found.trial.rate
    more = CHANGES[MORE](found.question.demand)
    assert isinstance(more, Mixed) and more.sessions == pytest.approx(72.0)


def test_a_run_fills_as_long_as_the_slowest_class_takes() -> None:
    chat = TrafficClass(name="chat", share=9.0, input=Fixed(100), output=Fixed(100))
    documents = TrafficClass(name="documents", share=1.0, input=Fixed(100), output=Fixed(600))
    assert Mixed.of([chat], Constant(1.0), 8192).slowest == 1.0
    assert Mixed.of([chat, documents], Constant(1.0), 8192).slowest == pytest.approx(600 / 150)


def test_requests_of_one_turn_are_open_as_asked_for() -> None:
    """As in a closed loop each is sent when another ends, and their number follows from how long answers take."""
    single = replace(AGENT, sessions=Sessions())
    demand = replace(Mixed.of([single], Constant(1.0), 8192), sessions=6.0)
    question = Question(
        machines=[machine()], demand=demand, slos=parse_slos(["e2e=60000(p90)"]), requests=(60, 90, 200)
    )
    found = plan(question, fast=True)
    assert isinstance(found, Plan) and isinstance(found.question.demand, Mixed)
    e2e = found.trial.summary.e2e.mean
    assert e2e is not None and found.question.demand.rate * e2e == pytest.approx(6.0, rel=0.05)
    assert "in conversations of one turn, each sent when another ends, 6 open at once" in as_text(found)


def test_no_arrivals_are_clumped_where_so_many_conversations_are_open() -> None:
    found = agents()
    names = changes_of(found.chosen.machine, found.question)
    assert names == ["20 % more requests", "answers half as long again", "prompts half as long again"]
    assert len(changes_of(found.chosen.machine, replace(found.question, demand=drawn(1.0)))) == 4


def test_what_looks_cheaper_has_conversations_at_the_rate_of_its_own_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take a tenth of the time on it that they take on the plan's machine."""
    found = agents()
    demand = found.question.demand
    assert isinstance(demand, Mixed) and demand.sessions
    asked, run = list[Mixed](), TrialRunner.run

    def noted(self: TrialRunner, candidate: Candidate, rate: float, **more: Any) -> Trial:
        assert isinstance(self.question.demand, Mixed)
        asked.append(self.question.demand)
        return run(self, candidate, rate, **more)

    monkeypatch.setattr(TrialRunner, "run", noted)
    question = replace(found.question, demand=replace(demand, slowdown=10 * demand.slowdown, rate=demand.rate / 2))
    runner, other = TrialRunner(question, found.traffic), replace(found.chosen, rate=demand.rate)
    confirmed(runner, other)
    assert asked and asked[0].slowdown < 2 * demand.slowdown
    assert asked[0].rate > 0.75 * demand.rate, "as many are open as are asked for"


def _last_turns(offered: Workload) -> dict[int, int]:
    """Return the index of the last turn of each conversation by that of its first."""
    first, last = dict[int, int](), dict[int, int]()
    for index, one in enumerate(offered.entries):
        first[index] = index if one.after is None else first[one.after]
        last[first[index]] = index
    return last


def test_so_many_gpus_serve_a_rate() -> None:
    question = Question(
        machines=[machine()], demand=drawn(1.0), slos=parse_slos(["ttft=4000(p90)"]), requests=(100, 200, 400), gpus=3
    )
    found = plan(question, fast=True)
    assert isinstance(found, Plan)
    assert found.replicas == 3 and found.trial.met
    assert found.question.demand.rate == pytest.approx(3 * found.chosen.rate, rel=0.3)
    assert "requests/s are served within the SLOs by 3" in as_text(found)
    spare = replace(found, question=replace(found.question, gpus=found.gpus + 1))
    assert f"within the SLOs by {found.gpus} of {found.gpus + 1}" in as_text(spare)
    missed = replace(found.trial, values=dict.fromkeys(question.slos, 9.0))
    text = as_text(replace(found, trial=missed))
    assert "not surely served within the SLOs by 3" in text and "(TTFT p90 is 9,000 ms in the last trial)" in text
    many = plan(replace(question, gpus=2000), fast=True)
    assert isinstance(many, Plan) and many.replicas == 2000


def test_what_a_limit_costs_on_so_many_gpus_is_a_rate() -> None:
    question = Question(
        machines=[machine()], demand=drawn(1.0), slos=parse_slos(["ttft=900(p90)"]), requests=(100, 200, 400), gpus=3
    )
    found = plan(question)
    assert isinstance(found, Plan)
    result = plan_result(found)
    assert isinstance(result, PlanResult)
    (limit,) = result.limits
    assert limit.rate == pytest.approx(3 * found.limits[0].rate) and limit.rate > result.rate


def test_too_few_gpus_are_refused_with_their_number() -> None:
    question = Question(machines=[machine(gpus=4)], demand=drawn(1.0), slos=parse_slos(["ttft=4000"]), gpus=2)
    with pytest.raises(PlanError, match="takes 4"):
        plan(question)


def test_a_class_whose_queue_grows_is_not_served() -> None:
    slow = TrafficClass(name="batch", share=1, input=Fixed(400), output=Fixed(40), lane="batch")
    demand = Mixed.of([CHAT, slow], Poisson(4.0), 8192)
    question = Question(
        machines=[machine()], demand=demand, slos=parse_slos(["chat.ttft=4000(p90)"]), requests=(200, 400, 800)
    )
    traffic = traffic_of(demand)
    runner = TrialRunner(question, traffic)
    trial = runner.run(candidate_for(question, traffic, question.machines[0], question.overrides), 8.0)
    assert trial.behind == "batch" and not trial.met and "batch is behind" in trial.shortfall
    assert trial.offered_by["chat"] > trial.offered_by["batch"]


def test_classes_are_also_sized_on_replicas_of_their_own() -> None:
    demand = Mixed.of([CHAT, BATCH], Poisson(12.0), 8192)
    question = Question(
        machines=[machine()], demand=demand, slos=parse_slos(["chat.ttft=4000(p90)"]), requests=(100, 200, 400)
    )
    assert class_names(question) == ("chat", "batch")
    found = plan(question)
    assert isinstance(found, Plan)
    assert [one.traffic for one in found.separate] == ["chat", "batch"]
    assert [one.rate for one in found.separate] == pytest.approx([9.0, 3.0])
    assert all(one.replicas is not None and one.replicas >= 1 for one in found.separate)
    text = as_text(found)
    assert "Each class on replicas of its own" in text and "of batch:" in text
    single = Mixed.of([CHAT], Poisson(12.0), 8192)
    assert class_names(replace(question, demand=single)) == ()


def test_where_rows_bound_how_many_are_open_the_rate_stays() -> None:
    """Without time to think, no rate opens more conversations than there are rows."""
    talk = replace(AGENT, sessions=Sessions(turns=Fixed(5), think_s=0.0, added=Fixed(60)))
    demand = Mixed.of([talk], Poisson(2.0))
    assert _balanced(replace(demand, rate=2.0, sessions=50), 50, 2, lambda each: 8 / each).rate == 2.0


THINKING = replace(AGENT, sessions=Sessions(turns=Fixed(20), think_s=3600.0, added=Fixed(5)))


def searched(rate: float) -> tuple[Candidate, float]:
    """Return a quick machine with the highest rate that a search found, and the highest of its closed form."""
    quick = machine(speed=400.0)
    question = Question(machines=[quick], demand=Mixed.of([THINKING], Constant(rate / 20), 8192))
    runner = TrialRunner(question, traffic_of(question.demand))
    candidate = replace(candidate_for(question, runner.traffic, quick, question.overrides), pooled=1)
    return measure(runner, candidate, is_rough=True), candidate.ceiling


def test_a_search_ends_at_the_open_conversations_that_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first trial at what the closed form serves would open far more than the demand has."""
    monkeypatch.setattr(mixture, "MAX_OPEN", 4_000)
    found, most = searched(0.01)
    assert 0.01 < found.rate < 0.02 < most / 10
    with pytest.raises(WorkloadError, match=r"--rate is 0.05 conversations/s, so that 3,420 conversations of 20 turns"):
        searched(1.0)


def test_classes_of_single_requests_wait_for_no_answer_whatever_their_shares_add_up_to() -> None:
    """0.7 + 0.2 + 0.1 is not quite 1: the mean of their turns is a little more."""
    kinds = [replace(BATCH, name=name, share=share) for name, share in (("a", 0.7), ("b", 0.2), ("c", 0.1))]
    mixed = Mixed.of(kinds, Poisson(60.0))
    assert mixed.conversations.mean_turns > 1 and not mixed.waits_for_answers
    assert mixed.warm_up_requests(1.0, 1.0, 1.0) == 0.0 and Mixed.of([AGENT], Poisson(1.0)).waits_for_answers


def test_shared_prefixes_are_cached_before_a_trial_is_measured() -> None:
    """Each is computed once. In a short run those first times would be a tail that a deployment has for a minute."""
    shared = SharedPrefixes(groups=20, group_tokens=1600)
    one = TrafficClass(name="rag", share=1, input=Fixed(50), output=Fixed(20), prefix=shared)
    demand = Mixed.of([one], Poisson(1.0))
    asked = Question(machines=[machine()], demand=demand, slos=parse_slos(["ttft=1000(p95)"]), requests=(60, 60, 180))
    runner = TrialRunner(asked, traffic_of(demand))
    candidate = candidate_for(asked, runner.traffic, asked.machines[0], asked.overrides)
    trial = runner.run(candidate, 0.5)
    assert trial.met and trial.cached > 0.9
    assert runner.traffic.long_prompt() == 50 and runner.traffic.shared == pytest.approx(1600 / 1650, abs=0.01)
