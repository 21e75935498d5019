"""SLOs of a plan: those that do not go together are refused, and those that few requests meet are not decided."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from inflight.metrics.slo import Slo, SloError, parse_slos
from inflight.planning.plan import Plan, as_text, plan
from inflight.planning.question import Question
from inflight.planning.result import plan_result
from inflight.planning.slos import check_slos, undecided

from .builders import drawn, machine

TTFT = Slo("ttft", 1.0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ttft=500(p50),ttft=300(p99)", "has TTFT p99 ≤ 300 ms, with which TTFT p50 ≤ 500 ms can never be missed"),
        ("itl=50(p90),itl=50(p99)", "has own ITL p99 ≤ 50 ms, with which own ITL p90 ≤ 50 ms can never be missed"),
        ("ttft=1000,e2e=500", "has E2E p99 ≤ 500 ms for whole answers, with which TTFT p99 ≤ 1,000 ms"),
    ],
)
def test_an_slo_that_another_one_makes_idle_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(SloError) as caught:
        check_slos(parse_slos([text]))
    assert sentence in str(caught.value)
    assert str(caught.value).endswith("correct one of them, or leave it out.")


@pytest.mark.parametrize(
    "text", ["ttft=300(p50),ttft=500(p99)", "ttft=500,e2e=9000,tpot=50", "ttft=1000(p99),e2e=500(p50)", ""]
)
def test_slos_that_can_each_be_missed_alone_go_together(text: str) -> None:
    check_slos(parse_slos([text]))


@pytest.mark.parametrize(
    ("value", "requests", "is_decided"),
    [(0.5, 563, True), (0.5, 562, False), (1.5, 10, True), (math.nan, 10, True)],
)
def test_few_requests_show_that_a_p99_is_missed_but_not_that_it_is_met(
    value: float, requests: int, is_decided: bool
) -> None:
    assert undecided({TTFT: value}, lambda slo: requests) == (() if is_decided else (TTFT,))


def test_a_class_of_which_nothing_was_measured_is_not_decided() -> None:
    of_class = Slo("ttft", 1.0, traffic="rare")
    assert undecided({of_class: math.nan}, lambda slo: {"chat": 600}.get(slo.traffic, 0)) == (of_class,)
    assert undecided({of_class: math.nan}, lambda slo: {"rare": 600}.get(slo.traffic, 0)) == ()


def test_a_plan_says_which_slo_too_few_requests_decide() -> None:
    few = Question(machines=(machine(),), demand=drawn(2.0), slos=parse_slos(["ttft=4000"]), requests=(60, 80, 160))
    found = plan(few, fast=True)
    assert isinstance(found, Plan) and found.trial.met
    offered = found.trial.summary.offered
    assert f"not decided: TTFT p99 ≤ 4,000 ms, from {offered} requests where 563 decide" in as_text(found)
    assert plan_result(found).undecided == ["TTFT p99 ≤ 4,000 ms"]  # type: ignore[union-attr]
    rare = Slo("ttft", 4.0, traffic="rare")
    of_class = replace(found, trial=replace(found.trial, values={rare: 1.0}, offered_by={"rare": 12}))
    assert f"not decided: {rare}, from 12 requests where 563 decide" in as_text(of_class), "of its own class"
    # Of a p90 as many requests decide.
    easy = plan(replace(few, slos=parse_slos(["ttft=4000(p80)"])), fast=True)
    assert isinstance(easy, Plan) and not easy.trial.undecided and "not decided" not in as_text(easy)
