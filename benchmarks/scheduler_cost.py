"""Times what a step costs beside the model: planning, preparing its arrays, and committing.

    python -m benchmarks.scheduler_cost [--steps N] [--profile SCENE] [--json] [--write]

Scenes: 32 rows, and 256 rows with 10,000 requests waiting; each in steady decode (no one comes or goes) and in churn
(short answers, so that every step ends some requests and admits others). The null executor runs the plans (its time
does not count), and the real backend's input batch prepares them: token ids, metadata, block tables, sampling settings.
Prompts are 128 tokens, half of them shared with others; the waiting queue is kept at its length by new arrivals, whose
`add` is timed per request. Two more scenes time the plan alone where the queue is looked at in vain: 200 requests that
share 8,192 cached tokens wait under the policy `prefix`, and all rows are taken; and the first in the queue, of which
99,008 tokens are cached, lacks blocks. Times are CPU time of the thread, so that a shared machine does not blur them;
the wall time is printed beside them. The garbage collector is set as the server sets it.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TypeVar

import numpy as np

from benchmarks.results import table, write_section
from inflight.core.policies import Policy
from inflight.core.policies.fcfs import Fcfs
from inflight.core.policies.prefix import Prefix
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import FinishedEvent
from inflight.core.types.plan import BatchPlan, Capacity
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.execution.batch.input_batch import InputBatch
from inflight.testing.null import NullExecutor

T = TypeVar("T")
PROMPT_TOKENS, SHARED_TOKENS = 128, 64
BUDGET = 4096  # the null executor is not the bottleneck that a budget protects
LONGEST = 4096


@dataclass(frozen=True)
class Scene:
    name: str
    rows: int
    waiting: int
    churn: bool
    target_ms: float  # of plan, prepare and commit together, at the median


SCENES = (
    Scene("32 rows, steady", 32, 0, False, 1.0),
    Scene("32 rows, churn", 32, 64, True, 1.0),
    Scene("256 rows, 10,000 waiting, steady", 256, 10_000, False, 4.0),
    Scene("256 rows, 10,000 waiting, churn", 256, 10_000, True, 4.0),
)


@dataclass(frozen=True)
class BlockedScene:
    """Requests run, and those that wait cannot join. shared: cached prompt tokens of all of them. own: further ones of
    each. spare: blocks beside those of the shared prompt."""

    name: str
    policy: Callable[[], Policy]
    rows: int
    waiting: int
    shared: int
    own: int
    spare: int
    target_ms: float  # of a plan, at the median


BLOCKED_SCENES = (
    BlockedScene("policy prefix, rows full, 200 waiting", Prefix, 8, 200, 8192, 16, 4000, 1.0),
    BlockedScene("first in the queue lacks blocks, 99k cached", Fcfs, 8, 2, 99_008, 2048, 150, 0.5),
)


@dataclass
class Times:
    """CPU seconds per step, and per request for `add`; wall: of plan, prepare and commit."""

    plan: list[float] = field(default_factory=list)
    commit: list[float] = field(default_factory=list)
    prepare: list[float] = field(default_factory=list)
    add: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    admitted: int = 0


@dataclass(frozen=True)
class BlockedRow:
    scene: str
    steps: int
    plan_median_ms: float
    plan_p99_ms: float
    target_ms: float


@dataclass(frozen=True)
class Row:
    scene: str
    steps: int
    admitted_per_step: float
    plan_median_ms: float
    commit_median_ms: float
    prepare_median_ms: float
    all_median_ms: float
    all_p99_ms: float
    wall_median_ms: float
    wall_p99_ms: float
    add_median_us: float
    target_ms: float


class Bench:
    def __init__(self, scene: Scene, steps: int):
        self.times = Times()
        self._scene = scene
        self._random = random.Random(0)
        self._shared = tuple(self._random.randrange(1000) for _ in range(SHARED_TOKENS))
        self._added = 0
        blocks = scene.rows * (PROMPT_TOKENS + steps + 64) // 16 * 2
        capacity = Capacity(blocks, 16, scene.rows, LONGEST, 1000)
        self._scheduler = Scheduler(SchedulerConfig(capacity, Chunked(BUDGET), Fcfs()))
        self._executor = NullExecutor(capacity)
        self._batch = InputBatch(capacity, padding_block=blocks)
        for _ in range(scene.rows + scene.waiting):
            self._add()
        while self._scheduler.stats().running < scene.rows:
            self._step()
        for _ in range(40):  # past the first answers' ends, which come together
            self._step()
        self.times = Times()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    def _add(self) -> None:
        """Half of the prompts begin alike."""
        alike = self._added % 2 == 0
        head = self._shared if alike else tuple(self._random.randrange(1000) for _ in range(SHARED_TOKENS))
        tail = tuple(self._random.randrange(1000) for _ in range(PROMPT_TOKENS - SHARED_TOKENS))
        request = Request(
            request_id=str(self._added),
            prompt_token_ids=head + tail,
            params=SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True),
            arrival=float(self._added),
            forced_output_tokens=self._random.randint(8, 24) if self._scene.churn else LONGEST,
        )
        self._added += 1
        _, seconds, _ = _timed(lambda: self._scheduler.add(request, request.arrival))
        self.times.add.append(seconds)

    def _step(self) -> None:
        now, times = float(self._added), self.times
        plan, seconds, wall = _timed(lambda: self._scheduler.plan(now))
        times.plan.append(seconds)
        assert isinstance(plan, BatchPlan)
        times.admitted += len(plan.new_requests)
        done = self._executor.submit(plan)
        _, seconds, prepared = _timed(lambda: self._prepare(plan))
        times.prepare.append(seconds)
        events, seconds, more = _timed(lambda: self._scheduler.commit(plan, done.result(), now))
        times.commit.append(seconds)
        times.wall.append(wall + prepared + more)
        for event in events:
            if isinstance(event, FinishedEvent):
                self._add()

    def _prepare(self, plan: BatchPlan) -> None:
        """Return what the real backend does around its kernels."""
        self._batch.update(plan.chunks, plan.new_requests, plan.freed_rows)
        where = self._batch.gather(plan.chunks).metadata
        last = where.positions[where.query_start[1:] - 1]
        samples = np.array([index for index, chunk in enumerate(plan.chunks) if chunk.sample], np.int32)
        rows = np.array([chunk.row for chunk in plan.chunks if chunk.sample], np.int32)
        self._batch.sampling(rows, last[samples])
        self._batch.keep(rows, last[samples], rows)


def measure_blocked(scene: BlockedScene, steps: int) -> BlockedRow:
    """The plans' CPU time. First one computes the prompt that all share, so that it is cached; then short ones run, in
    all rows where these are to be lacking."""
    capacity = Capacity(scene.shared // 16 + scene.spare, 16, scene.rows, 2**17, 1000)
    scheduler, executor = Scheduler(SchedulerConfig(capacity, Chunked(BUDGET), scene.policy())), NullExecutor(capacity)
    source = random.Random(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(source.randrange(1000) for _ in range(count))

    def step() -> float:
        plan, seconds, _ = _timed(lambda: scheduler.plan(0.0))
        assert isinstance(plan, BatchPlan)
        scheduler.commit(plan, executor.submit(plan).result(), 0.0)
        return seconds

    def add(name: str, prompt: tuple[int, ...], output: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
        scheduler.add(
            Request(request_id=name, prompt_token_ids=prompt, params=params, forced_output_tokens=output), 0.0
        )

    shared = tokens(scene.shared)
    add("first", shared, 1)
    while not scheduler.idle:
        step()
    for number in range(scene.rows if scene.waiting > scene.rows else 1):
        add(f"running {number}", tokens(16), LONGEST)
        step()
    for number in range(scene.waiting):
        add(f"waiting {number}", shared + tokens(scene.own), 16)
    times = [step() for _ in range(steps)]
    assert scheduler.stats().waiting == scene.waiting, "no request could join"
    p99 = statistics.quantiles(times, n=100)[98]
    return BlockedRow(scene.name, steps, statistics.median(times) * 1e3, p99 * 1e3, scene.target_ms)


def _timed(body: Callable[[], T]) -> tuple[T, float, float]:
    """The value, CPU seconds and wall seconds."""
    wall, start = time.perf_counter(), time.thread_time()
    value = body()
    return value, time.thread_time() - start, time.perf_counter() - wall


def measure(scene: Scene, steps: int) -> Row:
    bench = Bench(scene, steps)
    gc.collect()
    gc.freeze()  # as the engine's process does
    bench.run(steps)
    gc.unfreeze()
    times = bench.times
    whole = [sum(parts) for parts in zip(times.plan, times.prepare, times.commit, strict=True)]
    return Row(
        scene=scene.name,
        steps=steps,
        admitted_per_step=times.admitted / steps,
        plan_median_ms=statistics.median(times.plan) * 1e3,
        commit_median_ms=statistics.median(times.commit) * 1e3,
        prepare_median_ms=statistics.median(times.prepare) * 1e3,
        all_median_ms=statistics.median(whole) * 1e3,
        all_p99_ms=statistics.quantiles(whole, n=100)[98] * 1e3,
        wall_median_ms=statistics.median(times.wall) * 1e3,
        wall_p99_ms=statistics.quantiles(times.wall, n=100)[98] * 1e3,
        add_median_us=statistics.median(times.add) * 1e6 if times.add else 0.0,
        target_ms=scene.target_ms,
    )


def profile(scene: Scene, steps: int) -> None:
    bench = Bench(scene, steps)
    profiler = cProfile.Profile()
    profiler.enable()
    bench.run(steps)
    profiler.disable()
    pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(25)


def report(rows: list[Row], blocked: list[BlockedRow]) -> str:
    head = ["milliseconds", "admitted per step", "plan", "prepare", "commit", "all", "p99", "asked", "wall", "add, µs"]
    return (
        "CPU time, medians over the steps.\n\n"
        + table(
            head,
            [
                [
                    row.scene,
                    f"{row.admitted_per_step:.1f}",
                    *(
                        f"{value:.2f}"
                        for value in (
                            row.plan_median_ms,
                            row.prepare_median_ms,
                            row.commit_median_ms,
                            row.all_median_ms,
                            row.all_p99_ms,
                        )
                    ),
                    f"< {row.target_ms:g}",
                    f"{row.wall_median_ms:.2f}",
                    f"{row.add_median_us:.1f}",
                ]
                for row in rows
            ],
        )
        + "\n\n"
        + table(
            ["a plan while requests wait in vain, ms", "median", "p99", "asked"],
            [
                [row.scene, f"{row.plan_median_ms:.3f}", f"{row.plan_p99_ms:.3f}", f"< {row.target_ms:g}"]
                for row in blocked
            ],
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the scheduler without a model.")
    parser.add_argument("--steps", type=int, default=500, help="steps measured per scene (default 500)")
    parser.add_argument("--profile", metavar="SCENE", help="profile one scene (its name, or the beginning of it)")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON on standard output")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    arguments = parser.parse_args()
    if arguments.profile is not None:
        for scene in SCENES:
            if scene.name.startswith(arguments.profile):
                profile(scene, arguments.steps)
        return
    rows = [measure(scene, arguments.steps) for scene in SCENES]
    blocked = [measure_blocked(scene, arguments.steps) for scene in BLOCKED_SCENES]
    body = report(rows, blocked)
    print(body, file=sys.stderr)
    if arguments.write:
        command = f"python -m benchmarks.scheduler_cost --steps {arguments.steps}"
        write_section("scheduler_cost", "What a step costs beside the model", command, body)
    if arguments.json:
        print(json.dumps([*map(asdict, rows), *map(asdict, blocked)]))


if __name__ == "__main__":
    main()
