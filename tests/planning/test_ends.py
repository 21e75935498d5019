"""Trials with steps at an end of what is uncertain: SLOs are judged by the latencies that answers and pages have."""

from __future__ import annotations

import pytest

from inflight.metrics.slo import METRICS, Slo
from inflight.models.known import known_model
from inflight.planning.demand import traffic_of
from inflight.planning.ends import served
from inflight.planning.machine import Hardware
from inflight.planning.proposal import Overrides
from inflight.planning.question import Question
from inflight.planning.simulation import SHARES
from inflight.planning.sizing import candidate_for
from inflight.planning.trial_runner import TrialRunner
from inflight.simulate.hardware import find_gpu
from inflight.simulate.parallelism import Parallelism

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
    by_ttft, by_tpot = (found.percentiles[name][0] / usual.percentiles[name][0] for name in ("ttft", "tpot"))
    assert min(by_ttft, by_tpot) > 1.05 if end == 0 else max(by_ttft, by_tpot) < 0.95


@pytest.mark.parametrize("strategy", ["chunked", "continuous", "static"])
def test_a_candidate_serves_by_the_closed_form_as_much_as_its_proposal_says(strategy: str) -> None:
    """Also without a budget, and where a step is of several batches."""
    hardware = Hardware(model=known_model("deepseek-v3"), gpu=find_gpu("h200"), weights="fp8")
    demand = drawn(LIGHT, prompt="4000", answer="100")
    traffic = traffic_of(demand)
    machine = hardware.machine(Parallelism(expert=8, data_attention=8), traffic.mean_context)
    question = Question(machines=[machine], demand=demand)
    candidate = candidate_for(question, traffic, machine, Overrides(strategy=strategy, max_num_seqs=256))
    found = served(TrialRunner(question, traffic), candidate, machine.model)
    assert found == candidate.proposal.steady.requests_per_s
