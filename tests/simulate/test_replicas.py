"""Simulated clusters of as many replicas as their queues make."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from inflight.routing.autoscaling import DOWN_SECONDS, UP_SECONDS
from inflight.simulate.fitted import FittedModel
from inflight.simulate.replicas import Scaling, ScalingResult
from inflight.simulate.simulation import Simulation, SimulationSetup, simulate
from inflight.workload.workload import Entry, Workload

from .setups import chat, pool

SLOW = FittedModel(0.1, (0.002,))
START = 5.0


def wave() -> Workload:
    """Half a minute of more than two replicas bear, and two minutes of little."""
    rng, now, entries = random.Random(1), 0.0, []
    while now < 160.0:
        now += rng.expovariate(8.0 if now < 30.0 else 1.0)
        entries.append(Entry(now, rng.randint(20, 200), rng.randint(5, 40)))
    return Workload(tuple(entries), "wave")


def scaled(workload: Workload, most: int = 4, router: str = "least-work", *, fast_forward: bool = True) -> Simulation:
    growing = replace(pool(model=SLOW, router=router), scaling=Scaling(most, START))
    return simulate(workload, SimulationSetup(growing, fast_forward=fast_forward))


def scaling_of(run: Simulation) -> ScalingResult:
    (found,) = run.scaled
    assert found is not None
    return found


def ttft(run: Simulation) -> float:
    return max(one.first_token - one.intended for one in run.observations if one.first_token is not None)


def test_long_queues_make_replicas_and_short_ones_drain_them() -> None:
    workload = wave()
    run, alone = scaled(workload), simulate(workload, SimulationSetup(pool(model=SLOW)))
    counts = [count for _, count in scaling_of(run).over_time()]
    assert counts[0] == 1 and max(counts) == 4 and counts[-1] < 4
    assert all(one.outcome == "completed" for one in run.observations)
    assert ttft(run) < ttft(alone) / 2
    assert sum(one.busy for one in run.replicas) < scaling_of(run).replica_seconds < 4 * scaling_of(run).end


def test_a_replica_takes_its_time_to_start_and_ends_what_it_has() -> None:
    lives = scaling_of(scaled(wave())).lifetimes
    added = [one for one in lives if one.wanted > 0]
    assert added and all(one.wanted >= UP_SECONDS and one.serving == one.wanted + START for one in added)
    drained = [one for one in lives if one.drained_from < 1e9]
    assert drained and all(one.drained_from <= one.gone for one in drained)
    assert any(one.drained_from < one.gone for one in drained), "answers are brought to their end"
    assert min(one.drained_from for one in drained) > 30.0, "there was no reason before"
    times = sorted(one.drained_from for one in drained)
    assert all(later - one >= DOWN_SECONDS for one, later in itertools.pairwise(times))


@pytest.mark.parametrize("router", ["round-robin", "prefix-aware", "session-affinity"])
def test_it_is_the_same_every_time_and_with_every_plan_made_whole(router: str) -> None:
    runs = [scaled(wave(), 3, router), scaled(wave(), 3, router), scaled(wave(), 3, router, fast_forward=False)]
    assert runs[0].observations == runs[1].observations == runs[2].observations
    assert scaling_of(runs[0]).lifetimes == scaling_of(runs[1]).lifetimes == scaling_of(runs[2]).lifetimes


def test_a_replica_that_was_not_wanted_any_more_before_it_served_took_nothing() -> None:
    """Ten seconds of load, and a replica that would take a minute."""
    entries = [Entry(0.1 * index, 200, 30) for index in range(100)] + [Entry(150.0, 20, 5)]
    growing = replace(pool(model=SLOW), scaling=Scaling(2, 200.0))
    run = simulate(Workload(tuple(entries), "burst"), SimulationSetup(growing))
    first, second = scaling_of(run).lifetimes
    assert first.serving == 0.0 and second.serving > scaling_of(run).end and second.wanted < second.gone < 150.0
    assert [one.steps > 0 for one in run.replicas] == [True, False]


def test_one_replica_stays_alone_without_a_queue() -> None:
    workload = chat(20, rate=2.0)
    run = simulate(workload, SimulationSetup(replace(pool(), scaling=Scaling(8))))
    assert len(scaling_of(run).lifetimes) == 1 and scaling_of(run).over_time() == [(0.0, 1)]
    assert run.observations == simulate(workload, SimulationSetup(pool())).observations
    assert scaling_of(run).replica_seconds == max(one.ended for one in run.observations)
