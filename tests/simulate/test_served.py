"""Traffic counted in steps: the same plans whatever the machine does, and nothing found in a prefix cache."""

from __future__ import annotations

import random
from typing import Any

from inflight.config.assembly import scheduler_for
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.features import features
from inflight.core.types.plan import BatchPlan, Capacity
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.engine.null import NullExecutor
from inflight.simulate.served import Served, Traffic
from inflight.simulate.steps import Timed
from inflight.workload.lengths import Lognormal

CAPACITY = Capacity(300, 16, 8, 512, 1000)
TRAFFIC = Traffic(Lognormal(40, 100, 255), Lognormal(10, 30, 255), (0.6, 0.2), seed=3)


def served(speed: random.Random, **scheduling: Any) -> tuple[Served, EngineLoop]:
    def seconds(plan: BatchPlan) -> float:
        return 1e-3 * features(plan).tokens * speed.uniform(0.5, 2)

    budget = None if scheduling.get("strategy") == "static" else 64
    settings = EngineSettings(max_num_seqs=8, max_num_batched_tokens=budget)
    scheduler = scheduler_for(CAPACITY, settings, SchedulingSettings.of(**scheduling))
    loop = EngineLoop(scheduler, NullExecutor(CAPACITY, seconds), VirtualClock())
    return Served(loop), loop


def held(steps: list[Timed]) -> list[object]:
    return [one.held for one in steps]


def test_runs_make_the_same_plans_on_machines_of_any_speed() -> None:
    one, loop = served(random.Random(1))
    first = one.run(TRAFFIC.arrivals(CAPACITY, 64, 100, run=0), 200)
    again = one.run(TRAFFIC.arrivals(CAPACITY, 64, 100, run=1), 200)
    other = served(random.Random(2))[0].run(TRAFFIC.arrivals(CAPACITY, 64, 100, run=5), 200)
    assert 150 < len(first) <= 200 and held(first) == held(again) == held(other)
    assert [step.seconds for step in first] != [step.seconds for step in again]
    assert loop.idle


def test_a_load_is_about_what_it_says() -> None:
    """Rows are what binds here, and the lighter load leaves the engine idle at times."""
    for load, low, high in ((0.1, 0.5, 2.5), (1.0, 4.0, 8.0)):
        traffic = Traffic(TRAFFIC.prompts, TRAFFIC.outputs, (load,), seed=4)
        steps = served(random.Random(1))[0].run(traffic.arrivals(CAPACITY, 1000, 400, run=0), 400)
        assert low < sum(step.held.rows for step in steps) / len(steps) < high


def test_a_strategy_that_waits_and_a_door_that_refuses_are_served_too() -> None:
    kinds: list[dict[str, Any]] = [{"strategy": "static"}, {"admission": "queue", "max_queued_requests": 1}]
    for settings in kinds:
        one, loop = served(random.Random(1), **settings)
        steps = one.run(TRAFFIC.arrivals(CAPACITY, 64, 30, run=0), 60)
        assert 0 < len(steps) <= 60 and loop.idle
