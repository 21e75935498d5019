"""SLOs on whole programs: which of a trial count, how many decide, and demands that have none."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from inflight.metrics.observation import Observation, Outcome, programs
from inflight.metrics.slo import Slo, SloError, parse_slos, targets, without_programs
from inflight.planning.demand import traffic_of
from inflight.planning.mixture import Mixed
from inflight.planning.plan import Plan, as_text, plan
from inflight.planning.programs import Span, check_programs
from inflight.planning.proposal import Overrides
from inflight.planning.question import Question
from inflight.planning.result import plan_result
from inflight.planning.sizing import candidate_for
from inflight.planning.trial_runner import TrialRunner
from inflight.workload.arrivals import Poisson
from inflight.workload.classes import Sessions, TrafficClass
from inflight.workload.lengths import Fixed

from .builders import drawn, machine

JCT = Slo("jct", 10.0, 0.9)


def call(program: str, at: float, seconds: float = 1.0, outcome: Outcome = "completed", **more: object) -> Observation:
    sent = None if outcome == "unfinished" else at
    return Observation(f"{program} {at}", at, at + seconds, outcome, sent, program=program, **more)  # type: ignore[arg-type]


def agents(rate: float = 1.0, think: float = 2.0, turns: int = 3) -> Mixed:
    several = Sessions(turns=Fixed(turns), think_s=think, added=Fixed(20))
    one = TrafficClass(name="agents", input=Fixed(50), output=Fixed(10), sessions=several, share=1.0)
    return Mixed.of([one], Poisson(rate / turns))


def test_a_program_lasts_from_its_first_call_to_the_end_of_its_last() -> None:
    calls = [call("a", 0.0), call("a", 4.0, 2.0), call("b", 1.0), call("b", 3.0, outcome="failed"), call("", 2.0)]
    assert [(one.begins, one.seconds) for one in programs(calls)] == [(0.0, 6.0), (1.0, math.inf)]
    assert Slo("jct", 6.0, 0.5).value(calls) == 6.0 and Slo("jct", 6.0, 0.9).value(calls) == math.inf


def test_programs_count_that_had_the_time_of_their_limit_before_the_run_ended() -> None:
    """Only short ones of those that began later would have ended, and more of them would look within the limit."""
    calls = [
        *(call("before", 1.0), call("before", 2.0)),
        *(call("short", 5.0), call("short", 7.0)),
        *(call("cut", 6.0), call("cut", 0.0, outcome="unfinished")),
        *(call("late", 25.0), call("late", 26.0)),
        *(call("refused", 8.0), call("refused", 9.0, outcome="rejected")),
    ]
    assert Span(4.0, 30.0, 30.0).times(calls, JCT) == [3.0, 24.0, math.inf]
    assert Span(4.0, 30.0).times([*calls[:4], *calls[6:8]], JCT) == [2.0, 3.0]
    assert Span(4.0, 30.0, 30.0).times(calls, replace(JCT, traffic="other")) == []


def test_limits_on_programs_are_read_and_only_refused_where_requests_are_judged() -> None:
    texts = ["ttft=500,jct=60000(p95)", "chat.jct=900"]
    assert without_programs(texts) == (("ttft=500",), (Slo("jct", 60.0, 0.95), Slo("jct", 0.9, traffic="chat")))
    assert str(parse_slos(texts)[1]) == "JCT p95 ≤ 60,000 ms"
    with pytest.raises(SloError, match="the time of whole programs, but requests are evaluated one by one here"):
        targets(parse_slos(["jct=60000"]))


def test_demands_without_programs_and_limits_below_the_tools_own_time_are_refused() -> None:
    check_programs([JCT], agents())
    with pytest.raises(SloError, match="but the demand has single requests; give it --turns"):
        check_programs([JCT], drawn())
    with pytest.raises(SloError, match=r"\(--think\) alone takes 24,000 ms of a program on average"):
        check_programs([JCT], agents(think=12.0))


def question(slo: str, rate: float = 1.0) -> Question:
    return Question(machines=[machine()], demand=agents(rate), slos=parse_slos([slo]))


def test_a_trial_measures_programs_and_decides_with_enough_of_them() -> None:
    asked = question("jct=16000(p90)")
    runner = TrialRunner(asked, traffic_of(asked.demand))
    candidate = candidate_for(asked, runner.traffic, asked.machines[0], Overrides())
    (slo,), trial = asked.slos, runner.run(candidate, 1.0)
    assert trial.programs[slo] == trial.samples_of(slo) > 40
    assert 2 * 2.0 < trial.values[slo] < 16.0 and trial.values[slo] > 2 * trial.summary.e2e.p95  # type: ignore[operator]
    hard = replace(asked, slos=(replace(slo, limit=1.5 * trial.percentiles["jct"][0] / 2),))
    assert not TrialRunner(hard, runner.traffic).run(candidate, 1.0).met
    few = replace(trial, programs={slo: 12})
    assert few.undecided == (slo,)


@pytest.mark.wide
def test_a_plan_is_sized_by_the_completion_of_programs() -> None:
    lax, strict = (plan(question(f"jct={limit}(p90)", 12.0), fast=True) for limit in (60000, 15000))
    assert isinstance(lax, Plan) and isinstance(strict, Plan) and strict.replicas > lax.replicas
    assert "\n  JCT " in as_text(strict)
    assert plan_result(strict).latency_s["jct"]["p95"].expected  # type: ignore[union-attr]
    undecided = replace(strict, trial=replace(strict.trial, programs={strict.question.slos[0]: 12}))
    assert "not decided: JCT p90 ≤ 15,000 ms, from 12 programs where" in as_text(undecided)
