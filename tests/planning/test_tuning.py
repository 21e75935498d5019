"""Tuning: better settings are found, reasons stand beside them, and the real engine has the last word."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from inflight.metrics.observation import Observation, Targets
from inflight.metrics.slo import parse_slos
from inflight.metrics.summary import Summary, summarize
from inflight.planning.decision import Check
from inflight.planning.demand import Traced, traffic_of
from inflight.planning.engine_config import EngineConfig
from inflight.planning.mixture import Mixed
from inflight.planning.proposal import Overrides
from inflight.planning.simulation import read_off, simulate_run
from inflight.planning.tuning import Tuning, tune, tuned_dimensions
from inflight.workload.arrivals import Poisson
from inflight.workload.classes import Sessions, TrafficClass
from inflight.workload.lengths import Fixed, parse_lengths
from inflight.workload.workload import Workload, WorkloadError

from .builders import drawn, machine, workload

SLOS = parse_slos(["ttft=6000(p99),itl=900(p99)"])


def tuned(rate: float = 4.0, **more: Any) -> Tuning:
    demand = drawn(rate)
    on = more.pop("on", None) or machine()
    return tune(on, demand, traffic_of(demand), SLOS, requests=more.pop("requests", 120), **more)


@cache
def usual(rate: float = 4.0) -> Tuning:
    """Tune once for several tests."""
    return tuned(rate)


@pytest.fixture(scope="module")
def tuning() -> Tuning:
    return tuned(overrides=Overrides(max_num_seqs=16))


def test_the_best_is_at_least_as_good_as_the_start(tuning: Tuning) -> None:
    assert tuning.best.score >= tuning.start.score
    assert tuning.best.score[0] >= 0.99 * max(one.score[0] for one in tuning.tried)


def test_no_setting_is_tried_twice(tuning: Tuning) -> None:
    keys = [repr(replace(one.config, reasons={})) for one in tuning.tried]
    assert len(keys) == len(set(keys)) > 5


def test_reasons_name_what_the_others_did(tuning: Tuning) -> None:
    reason = tuning.best.config.reasons["max-num-batched-tokens"]
    assert "goodput" in reason and "against" in reason
    assert "continuous" in tuning.best.config.reasons["strategy"]
    assert tuning.best.config.reasons["preemption"]


def test_what_is_fixed_stays(tuning: Tuning) -> None:
    assert {one.config.max_num_seqs for one in tuning.tried} == {16}


def test_a_bad_beginning_is_left() -> None:
    """Steps of few tokens waste most of each tenth of a second; more rows cannot make up for it."""
    found = tuned(overrides=Overrides(max_num_seqs=32), rate=4.0)
    assert (found.best.config.max_num_batched_tokens or 0) >= 128


def test_conversations_send_what_was_asked_for() -> None:
    """From an engine without open ones, most of a short run has their first turns alone."""
    talk = TrafficClass(
        name="",
        share=1.0,
        input=Fixed(60),
        output=parse_lengths("lognormal:20:60"),
        sessions=Sessions(turns=Fixed(5), think_s=40.0),
    )
    demand = Mixed.of([talk], Poisson(0.4))
    fixed = Overrides(max_num_seqs=16, max_num_batched_tokens=256, policy="sjf")
    ran: list[tuple[Workload, tuple[float, float]]] = []

    def run(config: EngineConfig, offered: Workload, shares: tuple[float, float]) -> Summary:
        ran.append((offered, shares))
        return summarize([_answered(1, 0.1)])

    check = Check(run, seconds=30.0, settings=1)
    found = tune(machine(), demand, traffic_of(demand), SLOS, requests=60, overrides=fixed, check=check)
    assert demand.rate == 2.0
    assert found.start.trial.summary.offered_per_s == pytest.approx(2.0, rel=0.15)
    assert found.start.trial.cached > 0.4
    ((real, shares),) = ran
    simulated = simulate_run(machine(), found.start.config, real, machine().model)
    assert real.until is not None and (shares[1] - shares[0]) * real.until == pytest.approx(30.0, rel=0.5)
    summary, *_ = read_off([one for one in simulated.observations if one.sent is not None], shares, real.until)
    assert summary.offered_per_s == pytest.approx(2.0, rel=0.25), "as in trials"
    many = replace(talk, sessions=Sessions(turns=Fixed(8), think_s=1e7))
    with pytest.raises(WorkloadError, match="conversations of 8 turns or more would be open"):
        endless = Mixed.of([many], Poisson(4.0))
        tune(machine(), endless, traffic_of(endless), SLOS, requests=60)


def test_requests_of_real_runs_that_cannot_be_drawn_are_refused_before_the_search() -> None:
    """Of few requests more than a tenth may be longer than the model takes where of many fewer are."""
    classes = [
        TrafficClass(name=name, share=share, input=Fixed(prompt), output=parse_lengths("lognormal:20:60"))
        for name, share, prompt in (("short", 0.915, 60), ("long", 0.085, 160))
    ]
    demand, reported = Mixed.of(classes, Poisson(2.0), longest=180), list[str]()
    check = Check(lambda *of: summarize([_answered(1, 0.1)]), seconds=5.0)
    fixed = Overrides(max_num_seqs=16, max_num_batched_tokens=256, policy="sjf")
    traffic, asked = traffic_of(demand), {"requests": 60, "seed": 3, "overrides": fixed}
    with pytest.raises(WorkloadError, match="20% of the requests have more than the 180 tokens"):
        tune(machine(), demand, traffic, SLOS, check=check, progress=reported.append, **asked)
    assert not reported


def test_a_trace_that_is_shorter_than_a_run_fills_the_batch_before_it_is_measured() -> None:
    rows = [(0.25 * k, 100 + k % 50, 20 + k % 10) for k in range(60)]
    demand, ran = Traced(workload(*rows), 4.0), list[tuple[Workload, tuple[float, float]]]()

    def run(config: EngineConfig, offered: Workload, shares: tuple[float, float]) -> Summary:
        ran.append((offered, shares))
        return summarize([_answered(1, 0.1)])

    fixed = Overrides(max_num_seqs=32, max_num_batched_tokens=256, policy="sjf")
    check = Check(run, seconds=1000.0, settings=1)
    tune(machine(), demand, traffic_of(demand), SLOS, requests=60, overrides=fixed, check=check)
    ((offered, (begin, end)),) = ran
    assert len(offered.entries) == 60
    assert end - begin == pytest.approx(1 / 3) and begin > 0.5, "as of a plan's trial: the batch fills and drains"


def test_no_wider_steps_are_tried_than_memory_was_reckoned_with() -> None:
    tried = dict(tuned_dimensions(machine(), traffic_of(drawn(4.0)), SLOS, Overrides()))["max-num-batched-tokens"]
    for budget, most in ((2048, 4096), (4096, 2048), (8192, 4096)):
        config = EngineConfig(max_num_seqs=16, max_num_batched_tokens=budget)
        assert max(one.max_num_batched_tokens or 0 for one in tried(config)) == most


@pytest.mark.wide
def test_a_load_that_any_setting_serves_is_recognized() -> None:
    reported: list[str] = []
    demand = drawn(0.2)
    easy = tune(machine(), demand, traffic_of(demand), SLOS, requests=60, progress=reported.append)
    assert easy.indifferent and easy.alike >= 0.8 * len(easy.tried)
    assert not usual(40.0).indifferent
    trials = [line for line in reported if " of about " in line]
    assert len(trials) == len(easy.tried) and trials[0].startswith("1 of about ")
    assert any(line.startswith("About ") and "settings are tried" in line for line in reported)


def test_too_much_demand_is_said() -> None:
    assert usual(40.0).saturated


@pytest.mark.wide
def test_little_memory_makes_preemption_worth_trying() -> None:
    found = tuned(4.0, on=machine(blocks=40, host_blocks=100, block_bytes=2.0**20, copy_seconds=1e-4), requests=60)
    kinds = {one.config.scheduling.preemption for one in found.tried}
    assert kinds == {"recompute"} or "swap" in kinds
    if any(one.trial.preemptions for one in found.tried if one.config.max_num_seqs == found.start.config.max_num_seqs):
        assert "preemption" in found.best.config.reasons


def test_the_real_engine_has_the_last_word() -> None:
    """An "engine" on which the third best of the simulation is the only one that keeps its SLOs."""
    simulated = usual()
    favourite = simulated.tried[2].config
    ran: list[EngineConfig] = []

    def run(config: EngineConfig, offered: Workload, shares: tuple[float, float]) -> Summary:
        ran.append(config)
        good = replace(config, reasons={}) == replace(favourite, reasons={})
        return summarize([_answered(number, 0.1 if good else 50.0) for number in range(20)])

    found = tuned(check=Check(run, 20.0, len(simulated.tried), repeats=2))
    assert replace(found.best.config, reasons={}) == replace(favourite, reasons={})
    assert [one.attainment for one in found.best.measured] == [1.0, 1.0]
    assert "measured" in found.best.config.reasons["strategy"]
    assert found.decision is not None and found.decision.loss == 1.0
    assert ran[: len(ran) // 2] == ran[len(ran) // 2 :] and len(ran) == 2 * len(simulated.tried)


@pytest.mark.wide
def test_the_simulators_choice_stays_where_it_measures_as_well() -> None:
    simulated = usual()
    found = tuned(check=Check(lambda *of: summarize([_answered(1, 0.1)]), 20.0, settings=3))
    assert found.best.config == simulated.best.config and found.decision is not None
    assert found.decision.loss == 0.0 and found.decision.rank_correlation is None
    assert len(found.decision.judged) == 3


def _answered(number: int, ttft: float) -> Observation:
    return Observation(
        str(number),
        intended=float(number),
        ended=number + ttft + 1,
        first_token=number + ttft,
        last_token=number + ttft + 1,
        output_tokens=10,
        longest_output=10,
        targets=Targets(ttft=6.0),
    )


def test_swapping_runs_in_the_simulator() -> None:
    on = machine(blocks=64, host_blocks=200, block_bytes=2.0**20, copy_seconds=1e-4)
    scheduling = usual().best.config.scheduling
    config = EngineConfig(
        max_num_seqs=32,
        max_num_batched_tokens=256,
        scheduling=scheduling.but(strategy="chunked", itl_target=None, preemption="swap", swap_space=on.swap_gib),
    )
    run = simulate_run(on, config, drawn(10.0, answer="lognormal:60:100").workload(10.0, 100, 0), on.model)
    assert run.preemptions > 0 and all(one.outcome == "completed" for one in run.observations)
