"""Energy of a plan: published power of boards comes out, and it moves as utilisation does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import to_builtins

from inflight.core.types.features import Features
from inflight.models.known import known_model
from inflight.planning.demand import Drawn
from inflight.planning.energy import Energy, energy_of
from inflight.planning.machine import Hardware, Machine
from inflight.planning.plan import Plan, as_text, plan
from inflight.planning.question import Question
from inflight.planning.result import plan_result
from inflight.simulate.hardware import Gpu, find_gpu
from inflight.workload.lengths import Fixed


def machine(gpu: Gpu) -> Machine:
    return Hardware(model=known_model("llama-3.2-3b"), gpu=gpu).machine(1, 500)


def energy(gpu: Gpu, rows: int, busy: float = 1.0) -> Energy:
    one = machine(gpu)
    costs = one.model.costs(Features(rows, rows, rows, rows * 500, 0.0))  # type: ignore[attr-defined]
    seconds = sum(cost.seconds for cost in costs)
    shares: dict[str, float] = {}
    for cost in costs:
        shares[cost.bound] = shares.get(cost.bound, 0.0) + cost.seconds / seconds
    found = energy_of(one, shares, busy, 1, busy * rows / seconds)
    assert found is not None
    return found


# Watts of a board while vLLM decodes 128 rows of Phi-3-mini, 3.8 billion parameters (api.serialalice.pt, June 2026).
MEASURED = {"h200": 517, "b200": 606}


@pytest.mark.parametrize(("gpu", "watts"), MEASURED.items())
def test_published_power_comes_out(gpu: str, watts: float) -> None:
    assert energy(find_gpu(gpu), 128).board_watts == pytest.approx(watts, rel=0.15)


def test_more_rows_draw_more_and_take_far_less_for_a_token() -> None:
    alone, many = (energy(find_gpu("h200"), rows) for rows in (1, 128))
    assert alone.board_watts <= many.board_watts < find_gpu("h200").watts  # type: ignore[operator]
    assert 30 < alone.joules_per_output_token / many.joules_per_output_token < 80, "as published"
    assert many.kwh_per_million_output_tokens == pytest.approx(many.joules_per_output_token / 3.6)


def test_idle_time_draws_idle_power_and_a_building_takes_its_share() -> None:
    h200 = find_gpu("h200")
    busy, half = energy(h200, 32), energy(h200, 32, busy=0.5)
    assert half.board_watts == pytest.approx((busy.board_watts + half.idle_watts) / 2)
    assert half.idle_watts == 80 and energy(find_gpu("h100"), 1).idle_watts == pytest.approx(84)
    assert energy(replace(h200, pue=1.3), 32).watts == pytest.approx(1.3 * busy.watts)


def answer(gpu: Gpu) -> Plan:
    question = Question(machines=[machine(gpu)], demand=Drawn(2.0, Fixed(100), Fixed(20)), requests=(40, 40, 40))
    found = plan(question, fast=True)
    assert isinstance(found, Plan)
    return found


def test_a_plan_shows_its_energy_and_the_model_it_is_of() -> None:
    found = answer(find_gpu("h200"))
    text = " ".join(as_text(found).split())
    assert "J per output token" in text and "kWh per million" in text and "from 80 W idle to full" in text
    result = to_builtins(plan_result(found))["energy"]
    assert found.energy is not None and result["joules_per_output_token"] == found.energy.joules_per_output_token
    assert result["board_watts"] < 200, "hardly any load"


def test_unknown_power_is_said_to_be() -> None:
    found = answer(replace(find_gpu("h200"), name="mine", watts=None))
    assert "energy: the power of mine is not known; give watts in a --hardware-file" in as_text(found)
    assert to_builtins(plan_result(found))["energy"] is None
