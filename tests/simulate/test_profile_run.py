"""Profile runs: traffic counted in steps, which makes the same plans whatever the machine does and finds nothing in a
prefix cache; designed plans that an executor takes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from inflight.config.assembly import scheduler_for
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, Capacity
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.simulate.profile_run import Design, ProfileRun, Traffic
from inflight.simulate.steps import TimedStep
from inflight.testing.null import NullExecutor
from inflight.workload.lengths import Lognormal

CAPACITY = Capacity(300, 16, 8, 512, 1000)
TRAFFIC = Traffic(Lognormal(40, 100, 255), Lognormal(10, 30, 255), (0.6, 0.2), seed=3)


def profile_run(speed: random.Random, **scheduling: Any) -> tuple[ProfileRun, EngineLoop]:
    def seconds(plan: BatchPlan) -> float:
        return 1e-3 * features(plan).tokens * speed.uniform(0.5, 2)

    budget = None if scheduling.get("strategy") == "static" else 64
    settings = EngineSettings(max_num_seqs=8, max_num_batched_tokens=budget)
    scheduler = scheduler_for(CAPACITY, settings, SchedulingSettings.of(**scheduling))
    loop = EngineLoop(scheduler, NullExecutor(CAPACITY, seconds), VirtualClock())
    return ProfileRun(loop), loop


def sizes(steps: list[TimedStep]) -> list[object]:
    return [one.features for one in steps]


def test_runs_make_the_same_plans_on_machines_of_any_speed() -> None:
    one, loop = profile_run(random.Random(1))
    first = one.run(TRAFFIC.arrivals(CAPACITY, 64, 100, run=0), 200)
    again = one.run(TRAFFIC.arrivals(CAPACITY, 64, 100, run=1), 200)
    other = profile_run(random.Random(2))[0].run(TRAFFIC.arrivals(CAPACITY, 64, 100, run=5), 200)
    assert 150 < len(first) <= 200 and sizes(first) == sizes(again) == sizes(other)
    assert [step.seconds for step in first] != [step.seconds for step in again]
    assert loop.idle


def test_a_load_is_about_what_it_says() -> None:
    """Rows are the bottleneck here, and the lighter load leaves the engine idle at times."""
    for load, low, high in ((0.1, 0.5, 2.5), (1.0, 4.0, 8.0)):
        traffic = Traffic(TRAFFIC.prompts, TRAFFIC.outputs, (load,), seed=4)
        steps = profile_run(random.Random(1))[0].run(traffic.arrivals(CAPACITY, 1000, 400, run=0), 400)
        assert low < sum(step.features.rows for step in steps) / len(steps) < high


def test_a_strategy_that_waits_and_an_admission_that_refuses_are_profiled_too() -> None:
    kinds: list[dict[str, Any]] = [{"strategy": "static"}, {"admission": "queue", "max_queued_requests": 1}]
    for settings in kinds:
        one, loop = profile_run(random.Random(1), **settings)
        steps = one.run(TRAFFIC.arrivals(CAPACITY, 64, 30, run=0), 60)
        assert 0 < len(steps) <= 60 and loop.idle


@pytest.mark.parametrize(
    ("capacity", "budget", "tokens"),
    [
        (CAPACITY, 64, 5000),
        (Capacity(40, 16, 8, 512, 1000), 64, 5000),
        (Capacity(5000, 16, 32, 4096, 1000), 96, 24_000),
        (Capacity(64, 16, 1, 128, 1000), 1, 100),
        (Capacity(3000, 16, 4, 8192, 1000), 2048, 24_000),
    ],
)
def test_designed_steps_are_plans_that_an_executor_takes(capacity: Capacity, budget: int, tokens: int) -> None:
    """The null executor notices every wrong block and skipped position. Rounds are alike."""
    executor, design = NullExecutor(capacity), Design(capacity, budget, tokens)
    seen: list[list[Features]] = []
    step = 0
    for freed in ((), tuple(range(capacity.max_rows))):
        seen.append([])
        for plan in design.round(step, freed):
            assert plan.step == step and plan.tokens <= budget
            assert executor.submit(plan).result().error is None
            seen[-1].append(features(plan))
            step += 1
    assert seen[0] == seen[1]
    assert sum(one.tokens for one in seen[0]) <= 2 * tokens + 3000
    assert {one.tokens for one in seen[0] if not one.prefill_context} >= set(design.widths()) - {0}
