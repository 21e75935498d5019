"""How long trials are: long enough for the SLOs, and bounded in their steps; which prompts share blocks."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from inflight.metrics.slo import parse_slos
from inflight.models.known import known_model
from inflight.planning.demand import Drawn, Traced, traffic_of
from inflight.planning.machine import Hardware
from inflight.planning.plan import Plan, plan
from inflight.planning.proposal import Overrides
from inflight.planning.question import Question
from inflight.planning.replica_workload import spread_variation
from inflight.planning.search import Capacity
from inflight.planning.simulation import Topology, try_out
from inflight.planning.sizing import candidate_for, candidates, widen
from inflight.planning.steady import prompt_seconds
from inflight.planning.trial_runner import MAX_DECODE_STEPS, MIN_READ, TrialRunner
from inflight.simulate.hardware import find_gpu
from inflight.workload.workload import Entry, Workload

from .builders import drawn, machine, workload


@pytest.mark.parametrize(("answer", "requests"), [("400", MAX_DECODE_STEPS // 400), ("2000", MIN_READ)])
def test_a_trial_at_a_light_load_takes_a_bounded_number_of_steps(answer: str, requests: int) -> None:
    """With a step in flight each step is computed by itself, and hardly two requests meet."""
    demand = drawn(0.0005, answer=answer)
    question = Question(machines=[machine(depth=2)], demand=demand, slos=parse_slos(["ttft=9000(p99)"]))
    runner = TrialRunner(question, traffic_of(demand))
    candidate = candidate_for(question, runner.traffic, question.machines[0], Overrides())
    trial = runner.run(candidate, demand.rate)
    assert trial.met
    assert requests / 2 < trial.summary.requests <= requests


def test_where_steps_are_taken_together_a_trial_reads_what_its_percentile_takes() -> None:
    demand = drawn(0.0005, answer="400")
    question = Question(machines=[machine(depth=1)], demand=demand, slos=parse_slos(["ttft=9000(p99)"]))
    runner = TrialRunner(question, traffic_of(demand))
    candidate = candidate_for(question, runner.traffic, question.machines[0], Overrides())
    assert runner.run(candidate, demand.rate).summary.requests > MAX_DECODE_STEPS // 400


@pytest.mark.parametrize(("load", "seed", "is_beyond"), [(0.95, 0, False), (0.95, 4, False), (1.1, 2, True)])
def test_where_many_requests_come_in_a_step_a_trial_lasts_so_many_steps_that_a_queue_can_grow(
    load: float, seed: int, is_beyond: bool
) -> None:
    """As many as a percentile takes would be over in some tens of steps, of which one step more waiting is 2 %."""
    demand = drawn(5.0, answer="1")
    question = Question(machines=[machine()], demand=demand, slos=parse_slos(["ttft=9000(p99)"]))
    runner = TrialRunner(question, traffic_of(demand))
    candidate = candidate_for(question, runner.traffic, question.machines[0], Overrides())
    trial = runner.run(candidate, load * candidate.proposal.steady.requests_per_s, seed=seed)
    assert trial.saturated == is_beyond


def test_recorded_prompts_that_begin_alike_are_found_in_the_cache() -> None:
    begin = tuple(range(1, 65))
    entries = [Entry(0.5 * at, 72, 4, prompt=(*begin, *range(at, at + 8))) for at in range(200)]
    demand = Traced(Workload(tuple(entries), "recorded"), 2.0)
    question = Question(machines=[machine()], demand=demand, requests=(50, 50, 50))
    runner = TrialRunner(question, traffic_of(demand))
    candidate = candidate_for(question, runner.traffic, question.machines[0], Overrides())
    assert runner.run(candidate, demand.rate).cached > 0.8


@pytest.mark.parametrize(("variation", "whole"), [(4.0, 12), (4.0, 6), (8.0, 24)])
def test_few_replicas_have_the_gaps_that_clumps_leave_each_of_a_whole_fleet(variation: float, whole: int) -> None:
    """A router spreads a clump over all replicas; three that had to take it alone would have a TTFT far beyond."""
    each = 2.2
    demand = drawn(each * whole, gap_variation=variation)
    question = Question(machines=[machine()], demand=demand, slos=parse_slos(["ttft=900(p95)"]))
    runner = TrialRunner(question, traffic_of(demand))
    candidate = candidate_for(question, runner.traffic, question.machines[0], Overrides())

    def p95(engines: int, of: Drawn) -> float:
        trials = [
            runner.run(candidate, each, seed=seed, demand=of, topology=Topology(engines), reads=4.0)
            for seed in range(3)
        ]
        return statistics.fmean(one.percentiles["ttft"][1] for one in trials)

    fleet = p95(whole, demand)
    assert p95(3, demand) == pytest.approx(fleet, rel=0.1)
    assert p95(3, replace(demand, rate=3 * each)) > 1.15 * fleet


def test_gaps_of_a_part_of_the_replicas_are_no_more_regular_than_chance_or_the_stream() -> None:
    shares = ((4, 1), (4, 0.5), (4, 0.1), (0.3, 0.1), (4, 2))
    assert [spread_variation(variation, share) for variation, share in shares] == [4, 2, 1, 0.3, 4]


def test_another_step_is_said_to_serve_more_and_names_no_rate_that_the_plan_may_not_have() -> None:
    demand = drawn(20.0)
    question = Question(machines=[machine()], demand=demand, slos=parse_slos(["ttft=900(p90)"]), requests=(60, 80, 160))
    runner = TrialRunner(question, traffic_of(demand))
    one = candidate_for(question, runner.traffic, question.machines[0], Overrides())
    one = replace(one, config=replace(one.config, max_num_seqs=32, max_num_batched_tokens=256))
    met = runner.run(one, 1.0)
    assert met.met
    missed = replace(met, rate=1.2, values=dict.fromkeys(question.slos, 2.0))
    wider = widen(runner, replace(one, capacity=Capacity(met, missed, 2), rate=1.0))
    assert wider.config.max_num_batched_tokens == 512
    reason = wider.config.reasons["max-num-batched-tokens"]
    assert reason == "serves 20% more within the SLOs than steps of 256 tokens, the first guess"


MACHINES = (machine("four", gpus=4, speed=8.0), machine("two", gpus=2, speed=3.0), machine("one"))


def asked(rate: float) -> Question:
    return Question(machines=MACHINES, demand=drawn(rate), slos=parse_slos(["ttft=4000(p90)"]), requests=(60, 80, 160))


def test_engines_are_whole_where_the_cheapest_machines_are_looked_for() -> None:
    """Much traffic goes to the machine that serves the most with each GPU, little to the one with the fewest."""

    def first(rate: float) -> str:
        question = asked(rate)
        return candidates(question, traffic_of(question.demand))[0].machine.name

    assert (first(1.0), first(1000.0)) == ("one", "four")
    found = plan(asked(1.0), fast=True)
    assert isinstance(found, Plan) and found.gpus == 1


def test_no_trial_has_more_requests_than_a_short_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer one would be measured as if it had them; and several with seeds of their own would be one."""
    trace, asked_for = workload(*((0.2 * number, 100, 20) for number in range(900))), list[int]()
    question = Question(machines=[machine()], demand=Traced(trace, 3.0), slos=parse_slos(["ttft=4000(p99)"]))
    assert not question.takes_long_trials and replace(question, demand=drawn(3.0)).takes_long_trials
    usual = Traced.workload

    def noted(self: Traced, rate: float, requests: int, seed: int) -> Workload:
        asked_for.append(requests)
        return usual(self, rate, requests, seed)

    monkeypatch.setattr(Traced, "workload", noted)
    runner = TrialRunner(question, traffic_of(question.demand))
    one = candidate_for(question, runner.traffic, question.machines[0], question.overrides)
    asked_for.clear()
    for rate, reads in ((one.guess, 1.0), (one.guess, 4.0), (0.1 * one.guess, 1.0)):
        runner.run(one, rate, reads=reads)
    assert len(asked_for) == 3 and max(asked_for) <= 900


def test_a_whole_prompt_is_expected_to_take_the_forward_passes_of_its_engine() -> None:
    """As it does in a trial: each pass reads a mixture's experts again."""
    on = Hardware(model=known_model("qwen3-30b-a3b"), gpu=find_gpu("h100")).machine(1, 8000)
    demand = drawn(1.0, "8192", "20")
    question = Question(machines=[on], demand=demand, overrides=Overrides(strategy="continuous"))
    candidate = candidate_for(question, traffic_of(demand), on, question.overrides)
    passes = 8192 // (candidate.config.max_num_batched_tokens or 8192)
    alone = candidate.prompt_seconds(8192)
    assert passes > 1 and alone > 1.05 * prompt_seconds(on.model, 8192, candidate.step_tokens)
    run = workload(*((10.0 * number, 8192, 2) for number in range(4)))
    trial = try_out(on, replace(candidate.config, enable_prefix_caching=False), run)
    assert trial.percentiles["ttft"][0] == pytest.approx(alone, rel=0.05)
