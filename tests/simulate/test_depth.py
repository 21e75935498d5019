"""Engines on GPUs are simulated with two steps in flight: a plan is made while the one before it is computed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path

import pytest
from breadth import usual_of
from msgspec import structs

from inflight.config.assembly import scheduler_for
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.executor import Done
from inflight.core.types.features import features
from inflight.core.types.plan import BatchPlan, StepResult
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.engine.recorder import Recorder, open_record
from inflight.records.schema import StepRecord, of_kind, read_records
from inflight.simulate.replay import replay
from inflight.simulate.simulation import Pool, Requests, Simulation, SimulationSetup, resolved_settings, simulate
from inflight.testing.null import NullExecutor
from inflight.workload.workload import Entry, Workload

from .setups import Affine, chat, pool

STEP = 0.01


def ran(depth: int, *entries: Entry) -> Simulation:
    made = pool(SchedulingSettings().ending_early(0), Affine(token=0.0), depth=depth)
    return simulate(Workload(entries, "a few"), SimulationSetup(made))


def test_a_request_that_comes_within_a_step_waits_for_the_planned_one_too() -> None:
    """The first answer takes steps at 0, 10, 20, … ms; the second request comes 5 ms after one has begun."""
    first, second = Entry(0.0, 20, 50), Entry(0.025, 20, 10)
    waited = {}
    for depth in (1, 2):
        before, behind = ran(depth, first, second).observations
        assert before.first_token is not None and before.ended is not None and behind.first_token is not None
        assert (before.first_token, before.ended) == pytest.approx((STEP, 50 * STEP)), "which nothing holds up"
        waited[depth] = behind.first_token - 0.025
    assert waited == pytest.approx({1: 0.015, 2: 0.025})


def test_an_answer_alone_takes_as_long() -> None:
    """Its tokens follow one another step by step, also with async scheduling."""
    cpu, gpu = (ran(depth, Entry(0.0, 100, 40)) for depth in (1, 2))
    assert [one.ended for one in gpu.observations] == pytest.approx([one.ended for one in cpu.observations])
    assert [one.token_times for one in gpu.observations] == [one.token_times for one in cpu.observations]


# -- the same as an engine ------------------------------------------------------------------------------------------


class Wall(VirtualClock):
    """Time passes while a caller waits, as real time does, and independently of the seconds of steps."""

    def passed(self, seconds: float) -> None:
        pass


@dataclass
class Waiting:
    """A step on the device, and the client's turn while it is waited for."""

    client: Client
    ends: float
    done: StepResult

    def result(self) -> StepResult:
        self.client.comes_until(self.ends)
        return self.done


class Beside:
    """A device that computes beside the host, one step behind the other; what it computes, the null executor says."""

    def __init__(self, executor: NullExecutor, client: Client) -> None:
        self._executor, self._client = executor, client
        self.capacity, self.poll, self.close = executor.capacity, executor.poll, executor.close
        self._free = 0.0

    def submit(self, plan: BatchPlan) -> Waiting:
        done: Done = self._executor.submit(plan)
        self._free = max(self._free, self._client.clock.now()) + done.result().seconds
        return Waiting(self._client, self._free, done.result())


class Client:
    """Requests come at their times, whatever the engine does just then."""

    def __init__(self, workload: Workload, requests: Requests) -> None:
        self.clock = Wall()
        self._left = deque((one.arrival, requests(index, one.arrival)) for index, one in enumerate(workload.entries))
        self.loop: EngineLoop

    def comes_until(self, time: float) -> None:
        while self._left and self._left[0][0] <= time:
            arrival, request = self._left.popleft()
            self.clock.wait_until(arrival)
            self.loop.add(request)
        self.clock.wait_until(time)

    def serve(self) -> None:
        while self._left or not self.loop.idle:
            if self.loop.idle:
                self.comes_until(self._left[0][0])
            found = self.loop.advance()
            if not isinstance(found, list):
                self.comes_until(min(found.time, self._left[0][0]) if self._left else found.time)


def served(workload: Workload, of: Pool, path: Path) -> list[StepRecord]:
    """The steps of an engine of that depth, which is asked by a client that comes while steps are computed."""
    model, capacity = of.model(0), of.capacity
    client = Client(workload, Requests(workload, capacity.vocab_size, 0))
    executor = Beside(NullExecutor(capacity, lambda plan: model.seconds(features(plan))), client)
    scheduler = scheduler_for(capacity, of.settings, of.scheduling)
    recorder = Recorder(open_record(path), resolved_settings(of), capacity)
    client.loop = EngineLoop(scheduler, executor, client.clock, depth=of.depth, observers=[recorder])
    client.serve()
    client.loop.close()
    return of_kind(list(read_records(path)), "step")


def shown(step: StepRecord) -> StepRecord:
    """All that is planned, and when; seconds to a picosecond, since they are added up in another order."""
    times = {name: round(getattr(step, name), 12) for name in ("planned", "committed", "seconds")}
    return structs.replace(step, **times)


EVERY = list(product((60.0, 5.0), (2, 1), ("fcfs", "sjf"), ("chunked", "continuous", "adaptive", "static", "dynamic")))


@pytest.mark.parametrize(
    ("rate", "depth", "policy", "strategy"),
    usual_of(EVERY, *EVERY[:5], (60.0, 1, "fcfs", "chunked"), (60.0, 2, "sjf", "chunked"), (5.0, 2, "fcfs", "chunked")),
)
def test_an_engine_makes_the_plans_of_its_simulation(
    tmp_path: Path, strategy: str, policy: str, depth: int, rate: float
) -> None:
    """The oracle knows lengths by the request alone: what is learnt of those that have ended, a request that comes
    within a step is delivered before the step's ends in an engine, and after them in a simulation."""
    predictor = {"predictor": "oracle"} if policy == "sjf" else {}
    scheduling = SchedulingSettings.of(strategy=strategy, policy=policy, **predictor)
    of, workload = pool(scheduling, num_blocks=40, depth=depth), chat(60, rate, shared=48)
    simulate(workload, SimulationSetup(of), tmp_path / "simulated.jsonl")
    simulated = of_kind(list(read_records(tmp_path / "simulated.jsonl")), "step")
    engine = served(workload, of, tmp_path / "engine.jsonl")
    assert [shown(one) for one in engine[: len(simulated)]] == [shown(one) for one in simulated]
    assert len(simulated) > 100 and len(engine) - len(simulated) <= depth - 1, "it ends when all is answered"
    ahead = sum(later.planned < one.committed for one, later in pairwise(engine))
    assert (ahead > len(engine) / 4) == (depth == 2)


@pytest.mark.parametrize("strategy", ["chunked", "adaptive", "static"])
def test_its_record_replays(tmp_path: Path, strategy: str) -> None:
    scheduling = SchedulingSettings.of(strategy=strategy, policy="sjf", preemption="recompute")
    setup = SimulationSetup(pool(scheduling, num_blocks=30, depth=2))
    done = simulate(chat(40), setup, tmp_path / "record.jsonl")
    assert simulate(chat(40), setup).observations == done.observations
    again, outcome = replay(list(read_records(tmp_path / "record.jsonl")))
    assert outcome.difference is None and outcome.steps == done.steps and again.steps
