"""Trials with steps at an end of what is uncertain: SLOs are judged by the latencies that answers and pages have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inflight.metrics.slo import METRICS, Slo
from inflight.models.known import known_model
from inflight.planning.demand import traffic_of
from inflight.planning.machine import Hardware
from inflight.planning.proposal import Overrides
from inflight.planning.simulation import SHARES
from inflight.planning.sizing import Question, TrialRunner, candidate_for, rate_under
from inflight.simulate.efficiency import latency_spread
from inflight.simulate.hardware import find_gpu

from .builders import drawn

LIGHT = 0.2  # requests/s


@pytest.mark.parametrize("end", [0, 1])
def test_slos_at_an_end_are_judged_by_the_latencies_that_are_shown(end: int) -> None:
    machine = Hardware(model=known_model("llama-3-8b"), gpu=find_gpu("a100-80")).machine(1, 300)
    demand, slos = drawn(LIGHT, prompt="2000", answer="20"), tuple(Slo(metric, 9.0) for metric in METRICS)
    question = Question(machines=[machine], demand=demand, slos=slos, requests=(30, 30, 30))
    runner = TrialRunner(question, traffic_of(demand))
    candidate = candidate_for(question, runner.traffic, machine, Overrides())
    model = machine.cases[end]
    usual, found = (runner.run(candidate, LIGHT, model=one) for one in (None, model))
    for slo, metric in zip(slos[:2], METRICS, strict=False):
        assert found.values[slo] == found.percentiles[metric][SHARES.index(slo.share)]
    by_ttft, by_e2e = (found.percentiles[name][0] / usual.percentiles[name][0] for name in ("ttft", "e2e"))
    assert by_ttft == pytest.approx(latency_spread("ttft", "low" if end == 0 else "high"), rel=0.1)
    assert min(by_ttft, 1) < by_e2e < max(by_ttft, 1), "E2E follows from TTFT and TPOT, which is less far off"


def test_no_rate_keeps_a_limit_that_the_slow_end_of_ttft_is_above() -> None:
    machine = Hardware(model=known_model("llama-3-8b"), gpu=find_gpu("a100-80")).machine(1, 300)
    demand = drawn(LIGHT, prompt="2000", answer="20")
    alone = TrialRunner(Question(machines=[machine], demand=demand, requests=(30, 30, 30)), traffic_of(demand))
    idle = alone.run(candidate_for(alone.question, alone.traffic, machine, Overrides()), 0.01).percentiles["ttft"][0]

    def slow_rate(limit: float) -> float:
        question = Question(machines=[machine], demand=demand, slos=(Slo("ttft", limit),), requests=(30, 30, 30))
        runner = TrialRunner(question, alone.traffic)
        candidate = candidate_for(question, runner.traffic, machine, Overrides())
        return rate_under(runner, replace(candidate, pooled=1, rate=1.0), machine.cases[0])

    most = latency_spread("ttft", "low")
    assert slow_rate(0.85 * most * idle) == 0, "steps alone would keep it"
    assert slow_rate(3 * most * idle) > 0
