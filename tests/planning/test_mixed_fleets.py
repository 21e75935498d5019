"""Mixed fleets: short prompts stay with the engines that decode, long ones are computed elsewhere."""

from __future__ import annotations

from dataclasses import replace

from inflight.metrics.slo import parse_slos
from inflight.planning.candidate import Candidate
from inflight.planning.demand import traffic_of
from inflight.planning.layouts import CHUNKED, MIXED, LayoutNeed, LayoutOutlook, colocated, layout_need
from inflight.planning.mixed_fleets import mixed_fleets
from inflight.planning.question import Question
from inflight.planning.simulation import Topology, simulate_run
from inflight.planning.sizing import candidate_for
from inflight.planning.trial_runner import TrialRunner
from inflight.simulate.disagg import Link

from .builders import drawn, machine

LINK = Link(1e3, 1000.0)


def _runner(
    slo: str = "ttft=3000(p90),tpot=400(p90)", prompt: str = "lognormal:100:1600"
) -> tuple[TrialRunner, Candidate]:
    question = Question(
        machines=[machine(block_bytes=16e3)],
        demand=drawn(30.0, prompt, "lognormal:20:60"),
        slos=parse_slos([slo]),
        requests=(100, 200, 400),
    )
    traffic = traffic_of(question.demand)
    runner = TrialRunner(question, traffic)
    return runner, candidate_for(question, traffic, question.machines[0], question.overrides)


def test_short_prompts_stay_with_the_engine_that_decodes() -> None:
    runner, best = _runner()
    layout = mixed_fleets(runner, best, LINK)[0]
    workload = runner.question.demand.workload(2.0, 60, 0)

    def prefill_steps(max_local_tokens: int) -> int:
        assert layout.pools is not None
        mode = replace(layout.pools.disagg_mode, max_local_tokens=max_local_tokens)
        topology = Topology(layout.engines, pools=replace(layout.pools, disagg_mode=mode))
        run = simulate_run(best.machine, layout.config, workload, best.machine.model, topology)
        assert all(one.outcome == "completed" for one in run.observations)
        return sum(one.steps for one in run.replicas[: run.first])

    median = sorted(entry.prompt_tokens for entry in workload.entries)[30]
    assert prefill_steps(0) > prefill_steps(median) > prefill_steps(10**6) == 0


def test_its_engines_differ_in_the_size_of_their_steps() -> None:
    runner, best = _runner()
    layouts = mixed_fleets(runner, best, LINK)
    assert layouts and all(one.name == MIXED and one.pools is not None for one in layouts)
    for one in layouts:
        assert one.pools is not None and one.config.max_num_batched_tokens is not None
        assert one.pools.config.max_num_batched_tokens < one.config.max_num_batched_tokens  # type: ignore[operator]
        assert one.pools.disagg_mode.max_local_tokens > 0


def test_prompts_that_are_all_alike_leave_nothing_to_divide() -> None:
    runner, best = _runner(prompt="300")
    assert not mixed_fleets(runner, best, LINK)


def test_the_verdict_compares_it_with_the_best_other_layout() -> None:
    runner, best = _runner()
    usual = next(one for one in colocated(runner, best) if one.name == CHUNKED)
    need = layout_need(runner, mixed_fleets(runner, best, LINK)[0])
    assert need.met is not None
    other = LayoutNeed(usual, replace(need.met, rate=need.met.rate / 2), None)
    outlook = LayoutOutlook([other, need], runner.question.demand, runner.traffic, LINK)
    assert any("a mixed fleet pays" in one and "2 times the requests per GPU" in one for one in outlook.verdicts)
    slower = LayoutNeed(usual, replace(need.met, rate=need.met.rate * 2), None)
    outlook = LayoutOutlook([slower, need], runner.question.demand, runner.traffic, LINK)
    assert any("serves no more" in one for one in outlook.verdicts)
    nowhere = replace(need, met=None, missed=need.met)
    for others, said in ((other, "at no rate"), (replace(other, met=None), "at no rate either")):
        outlook = LayoutOutlook([others, nowhere], runner.question.demand, runner.traffic, LINK)
        assert f"mixed fleets meet the SLOs {said}" in outlook.verdicts


def test_a_fleet_whose_pools_fit_the_rate_better_takes_fewer_though_it_serves_no_more() -> None:
    runner, best = _runner()
    usual = next(one for one in colocated(runner, best) if one.name == CHUNKED)
    need = layout_need(runner, mixed_fleets(runner, best, LINK)[0])
    assert need.met is not None
    engines, other = need.layout.engines, LayoutNeed(usual, replace(need.met, rate=0.99 * need.rate), None)
    demand = replace(runner.question.demand, rate=engines * need.rate)
    (verdict,) = LayoutOutlook([other, need], demand, runner.traffic, LINK).verdicts
    assert f"fit this rate better: {engines} GPUs in place of {engines + 1}" in verdict
    many = replace(demand, rate=20 * demand.rate)
    (verdict,) = LayoutOutlook([other, need], many, runner.traffic, LINK).verdicts
    assert "serves no more" in verdict and "better" not in verdict, "a hundredth fewer is noise"
