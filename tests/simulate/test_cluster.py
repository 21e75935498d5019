"""Several replicas: in the order of their times, as one engine where there is one, and what routers are for."""

from __future__ import annotations

import pytest
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.comparison import steady
from inflight.config.assembly import scheduler_for
from inflight.config.scheduling import SchedulingSettings
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.metrics.observation import Observation
from inflight.routing.registry import ROUTERS
from inflight.simulate.executor import SimulatedExecutor
from inflight.simulate.simulation import Pool, Requests, SimulationSetup, simulate
from inflight.workload.driving import Driver
from inflight.workload.workload import Entry, Workload

from .setups import chat, pool


def driven(workload: Workload, of: Pool, seed: int = 0) -> list[Observation]:
    """The same engine under the driver of real ones."""
    executor = SimulatedExecutor(of.capacity, of.model(0))
    loop = EngineLoop(scheduler_for(of.capacity, of.settings, of.scheduling), executor, VirtualClock())
    return Driver(loop, workload, Requests(workload, of.capacity.vocab_size, seed)).run()


@given(
    seed=st.integers(0, 1000),
    rate=st.sampled_from([2.0, 20.0, 1000.0]),
    strategy=st.sampled_from(["static", "dynamic", "continuous", "chunked", "adaptive", "slack"]),
    policy=st.sampled_from(["fcfs", "sjf", "deadline", "prefix"]),
    concurrency=st.sampled_from([None, 3]),
    num_blocks=st.sampled_from([30, 400]),
)
@settings(examples(15), deadline=None)
def test_one_replica_is_one_engine(
    seed: int, rate: float, strategy: str, policy: str, concurrency: int | None, num_blocks: int
) -> None:
    entries = chat(12, rate, seed, shared=32).entries
    turns = tuple(Entry(0.0, one.prompt_tokens + 190, 5, after=index, think_s=0.1) for index, one in enumerate(entries))
    workload = Workload((*entries, *turns), "chat", concurrency, closed=concurrency is not None and seed % 2 == 0)
    one = pool(SchedulingSettings.of(strategy=strategy, policy=policy), num_blocks=num_blocks)
    assert simulate(workload, SimulationSetup(one)).observations == driven(workload, one)


@pytest.mark.parametrize("router", ROUTERS)
def test_the_same_seed_is_the_same_run(router: str) -> None:
    setup = SimulationSetup(pool(replicas=3, router=router), seed=4)
    first = simulate(chat(60, 50.0), setup)
    assert first.observations == simulate(chat(60, 50.0), setup).observations
    assert all(one.outcome == "completed" for one in first.observations)
    assert all(one.steps for one in first.replicas)


def test_two_replicas_serve_side_by_side() -> None:
    """Two equal requests at once on two engines take what one takes alone."""
    together = Workload((Entry(0.0, 40, 10), Entry(0.0, 40, 10)), "two")
    alone = simulate(Workload((Entry(0.0, 40, 10),), "one"), SimulationSetup(pool())).observations[0]
    for one in simulate(together, SimulationSetup(pool(replicas=2))).observations:
        assert (one.ttft, one.e2e) == (alone.ttft, alone.e2e)


def test_a_router_knows_no_end_before_it_came() -> None:
    """The second request comes within the first one's last step: its replica is still busy for the router."""
    workload = Workload((Entry(0.0, 2, 1), Entry(0.005, 2, 1)), "two")
    run = simulate(workload, SimulationSetup(pool(replicas=2, router="least-loaded")))
    assert [one.steps for one in run.replicas] == [1, 1]
    late = Workload((Entry(0.0, 2, 1), Entry(0.015, 2, 1)), "two")
    run = simulate(late, SimulationSetup(pool(replicas=2, router="least-loaded")))
    assert [one.steps for one in run.replicas] == [2, 0]


def test_least_loaded_waits_less_than_round_robin() -> None:
    def p99(router: str) -> float:
        summary = steady(
            simulate(chat(400, 7.0), SimulationSetup(pool(replicas=3, router=router, max_rows=2))).observations
        )
        assert summary.ttft.p99 is not None
        return summary.ttft.p99

    assert p99("least-loaded") < p99("power-of-two") < p99("round-robin")


def test_affinity_finds_more_prefixes() -> None:
    def cached(router: str) -> int:
        workload = chat(120, 10.0, shared=256, groups=7)
        run = simulate(workload, SimulationSetup(pool(replicas=3, router=router, num_blocks=60)))
        return steady(run.observations).cached_tokens

    assert cached("prefix-affinity") > cached("round-robin")


def test_a_closed_loop_sends_when_an_answer_has_come_on_whichever_replica() -> None:
    """Two in flight on three replicas; from half a second on no request is sent."""
    entries = tuple(Entry(0.0, 20, 5 + index % 7) for index in range(40))
    workload = Workload(entries, "closed", concurrency=2, closed=True, until=0.5)
    seen = simulate(workload, SimulationSetup(pool(replicas=3))).observations
    sent = [one for one in seen if one.sent is not None]
    assert 4 < len(sent) < 40 and all(one.outcome == "completed" for one in sent)
    ends = sorted(one.ended for one in sent)
    assert [one.intended for one in sent] == pytest.approx([0.0, 0.0, *ends[: len(sent) - 2]])
    assert max(one.intended for one in sent) < 0.5


def test_refused_requests_are_observed() -> None:
    settings = SchedulingSettings.of(admission="queue", max_queued_requests=1)
    run = simulate(chat(30, 1000.0), SimulationSetup(pool(settings, max_rows=1)))
    outcomes = [one.outcome for one in run.observations]
    assert outcomes.count("rejected") > 20 and outcomes.count("completed") >= 2
