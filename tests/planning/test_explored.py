"""The grid of a plan's page: loads and layouts that were simulated, as the page reads them."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from inflight.metrics.slo import parse_slos
from inflight.planning.demand import traffic_of
from inflight.planning.explored import LOADS, explore
from inflight.planning.infeasible import Infeasible
from inflight.planning.plan import Plan, plan
from inflight.planning.proposal import Overrides
from inflight.planning.question import Question

from .builders import drawn, machine

SIZES = (40, 60, 120)


@cache
def planned(slo: str = "ttft=4000(p95),tpot=500(p95)") -> Plan | Infeasible:
    question = Question(machines=[machine()], demand=drawn(6.0), slos=parse_slos([slo]), requests=SIZES)
    return plan(question, fast=True)


def test_every_load_is_simulated_for_every_layout_as_typical_and_at_both_ends() -> None:
    reported: list[str] = []
    found = explore(planned(), progress=reported.append)
    assert len(found.layouts) == 2, "the planned steps, and smaller ones"
    for layout in found.layouts:
        rates = [run.rate for run in layout.runs]
        assert len(rates) == len(LOADS) and rates == sorted(rates)
        assert all(set(run.latency) == {"ttft", "tpot", "itl", "e2e"} for run in layout.runs if not run.saturated)
        lowest = layout.runs[0]
        assert lowest.low["tpot"][0] < lowest.latency["tpot"][0] < lowest.high["tpot"][0]  # type: ignore[operator]
    assert len(reported) == 2 * 3 * len(LOADS) and reported[-1].startswith(f"{len(reported)} of {len(reported)}: ")


def test_progress_has_all_digits_of_a_high_rate() -> None:
    question = Question(machines=[machine(speed=1000.0)], demand=drawn(6.0), requests=SIZES)
    reported: list[str] = []
    explore(plan(question, fast=True), fast=True, progress=reported.append)
    assert any(re.search(r"\d,\d{3} requests/s", one) for one in reported)
    assert not any("e+" in one for one in reported)


def test_steps_of_whole_prompts_have_no_other_size() -> None:
    """Smaller ones would be the same simulation again."""
    asked = Question(
        machines=[machine()], demand=drawn(6.0), overrides=Overrides(strategy="continuous"), requests=SIZES
    )
    assert [one.name for one in explore(plan(asked, fast=True), fast=True).layouts] == ["box"]


@pytest.mark.parametrize(
    ("low", "high", "said"), [(1, 2, "interval 1 to 2"), (2, 2, "interval 2"), (103, None, "at least 103")]
)
def test_the_page_has_the_interval_of_the_plan(low: int, high: int | None, said: str) -> None:
    found = planned()
    assert isinstance(found, Plan)
    refined = replace(found, is_first=False, replicas=2, replicas_low=low, replicas_high=high)
    assert f"The plan itself: 2 replicas of box ({said}), by" in " ".join(explore(refined, fast=True).about)
    fixed = replace(refined, question=replace(found.question, gpus=2), rates=(3.0, 4.5))
    assert "(interval 3 to 4.5 requests/s), by" in " ".join(explore(fixed, fast=True).about)


def test_latency_grows_with_the_load_and_saturated_runs_have_none() -> None:
    for layout in explore(planned(), fast=True).layouts:
        calm = [run for run in layout.runs if not run.saturated]
        assert calm[0].latency["ttft"][2] < calm[-1].latency["ttft"][2]  # type: ignore[operator]
        assert all(run.latency == {} for run in layout.runs if run.saturated)


def test_fast_leaves_the_ends_out() -> None:
    runs = [run for layout in explore(planned(), fast=True).layouts for run in layout.runs]
    assert all(run.low == run.high == {} for run in runs)


@pytest.mark.parametrize(
    ("slo", "limits", "share"),
    [
        ("ttft=4000(p95),tpot=500(p95)", {"ttft": 4000.0, "tpot": 500.0, "itl": None}, 1),
        ("ttft=4000(p50)", {"ttft": 4000.0, "tpot": None, "itl": None}, 0),
        ("ttft=4000(p90),itl_max=900(p99)", {"ttft": 4000.0, "tpot": None, "itl": 900.0}, 2),
    ],
)
def test_the_sliders_begin_with_the_limits_that_were_asked_for(
    slo: str, limits: dict[str, float | None], share: int
) -> None:
    found = explore(planned(slo), fast=True)
    assert {name: value and round(value, 6) for name, value in found.limits.items()} == limits
    assert found.share == share and found.rate == 6.0


def test_a_plan_that_cannot_be_has_a_page_with_other_limits() -> None:
    answer = planned("ttft=1(p99)")
    assert isinstance(answer, Infeasible)
    found = explore(answer, fast=True)
    assert found.layouts[0].runs and "with other limits there may be one" in " ".join(found.about)
    assert found.output_tokens == traffic_of(answer.question.demand).output_mean


def test_the_runs_do_not_depend_on_the_number_of_processes() -> None:
    assert explore(planned(), fast=True) == explore(planned(), fast=True, workers=2)
