"""The gain of speculation: two trials of the planned load, and whether the engine's controller would draft."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from inflight.metrics.slo import parse_slos
from inflight.planning.outlook import SpeculationOutlook
from inflight.planning.plan import Plan, PlanError, as_text, plan
from inflight.planning.question import Question
from inflight.planning.result import PlanResult, SpeculationResult, WithAndWithout, plan_result
from inflight.simulate.drafting import SimulatedDrafts, parse_acceptance

from .builders import Linear, drawn, machine

PER_STEP = Linear(0.05, 1e-6)  # tokens cost next to nothing
PER_TOKEN = Linear(1e-4, 0.002)


@cache
def answer(model: Linear, acceptance: str, pass_seconds: float = 0.0) -> Plan:
    on = replace(machine(), model=model, cases=())
    drafts = SimulatedDrafts(parse_acceptance(acceptance), pass_seconds=pass_seconds)
    demand = drawn(0.5, answer="lognormal:120:300")
    slos = parse_slos(["ttft=60000(p99)"])
    found = plan(Question(machines=(on,), demand=demand, slos=slos, requests=(60, 60, 120), drafts=drafts))
    assert isinstance(found, Plan)
    return found


def shown(found: Plan) -> SpeculationResult | None:
    data = plan_result(found)
    assert isinstance(data, PlanResult)
    return data.speculation


def outlook(*asked: Any) -> SpeculationOutlook:
    found = answer(*asked).speculation
    assert found is not None
    return found


def test_where_tokens_of_a_step_are_cheap_right_drafts_are_worth_it() -> None:
    found = outlook(PER_STEP, "0.8")
    without, with_drafts = found.tpot
    assert found.is_worth_it and with_drafts < 0.6 * without
    assert found.drafted.steps_share > 0.5 and found.drafted.tokens > 2
    text = as_text(answer(PER_STEP, "0.8"))
    assert "drafts accepted with chance 0.8 (as set: 0.8), looked up, not computed" in text
    assert "worth it: give --speculation suffix" in text
    data = shown(answer(PER_STEP, "0.8"))
    assert data is not None and data.worth_it and data.tpot_s == WithAndWithout(without, with_drafts)


@pytest.mark.wide
@pytest.mark.parametrize(("model", "acceptance"), [(PER_STEP, "0"), (PER_TOKEN, "0.8")])
def test_where_they_are_not_the_engine_hardly_drafts(model: Linear, acceptance: str) -> None:
    found = outlook(model, acceptance)
    without, with_drafts = found.tpot
    assert not found.is_worth_it and with_drafts < 1.05 * without
    assert found.drafted.steps_share < 0.1
    assert "not worth it at this load" in as_text(answer(model, acceptance))


@pytest.mark.wide
def test_passes_of_a_drafting_model_cost() -> None:
    cheap, dear = (outlook(PER_STEP, "0.8", seconds) for seconds in (0.001, 0.04))
    assert cheap.is_worth_it and cheap.tpot[1] < dear.tpot[1]
    assert "each pass of a draft model 1 ms" in as_text(answer(PER_STEP, "0.8", 0.001))
    assert "worth it: give --speculation draft:MODEL" in as_text(answer(PER_STEP, "0.8", 0.001))


def test_speculation_is_shown_only_where_asked_for() -> None:
    found = plan(Question(machines=(machine(cases=()),), demand=drawn(0.5), requests=(60, 60, 120)))
    assert isinstance(found, Plan) and found.speculation is None
    assert "Speculation" not in as_text(found) and shown(found) is None


def test_a_model_with_recurrent_state_is_refused() -> None:
    on = machine(cases=(), state_snapshots=4)
    drafts = SimulatedDrafts(parse_acceptance("0.8"))
    with pytest.raises(PlanError, match="this model's layers keep a recurrent state"):
        plan(Question(machines=(on,), demand=drawn(0.5), requests=(60, 60, 120), drafts=drafts))
