"""Records for tests: small workloads through the real scheduler and loop, on the null executor and a virtual clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.builders import request

from inflight.core.estimation.latency import LatencyModel
from inflight.core.policies.fcfs import Fcfs
from inflight.core.queueing.admission import Admission
from inflight.core.queueing.lanes import LaneSettings
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.running import PreemptionMode
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies import Strategy
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.features import features
from inflight.core.types.plan import BatchPlan, Capacity, WaitUntil
from inflight.core.types.request import Request, RequestRefused
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.engine.recorder import Recorder
from inflight.report.reading import read_record
from inflight.report.run import Run, Setting
from inflight.report.steps.engine_run import EngineRun
from inflight.testing.null import NullExecutor

VOCABULARY = 1000


def step_seconds(plan: BatchPlan) -> float:
    """20 ms for a step and 1 ms for every token slot in it."""
    return 0.02 + 0.001 * features(plan).tokens


@dataclass(frozen=True)
class Engine:
    """An engine to record: roomy, unless a test makes it small."""

    strategy: Strategy = field(default_factory=lambda: Chunked(38))
    num_blocks: int = 64
    max_rows: int = 6
    host_blocks: int = 0
    preemption: PreemptionMode = "recompute"
    prefix_caching: bool = True
    depth: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    windows: tuple[int, ...] = (0,)
    state_snapshots: int = 0
    max_queued_requests: int | None = None

    @property
    def capacity(self) -> Capacity:
        host = (self.host_blocks, 0.001)
        sizes = (self.num_blocks, 16, self.max_rows, 2048, VOCABULARY, *host)
        return Capacity(*sizes, windows=self.windows, state_snapshots=self.state_snapshots)

    def record(self, path: Path, requests: Sequence[Request]) -> Path:
        """Each request is added at its arrival, and all are answered."""
        lanes = [LaneSettings(name="interactive", policy=Fcfs())]
        lanes.append(LaneSettings(name="batch", policy=Fcfs(), background=True))
        scheduler = Scheduler(
            SchedulerConfig(
                self.capacity,
                self.strategy,
                lanes,
                latency=LatencyModel(),
                prefix_caching=self.prefix_caching,
                preemption=self.preemption,
                token_budget=512,
                admission=self._admission(),
            )
        )
        named = {"strategy": self.strategy.name, "prefix_caching": self.prefix_caching, **self.settings}
        settings = {name: {"value": value, "reason": "as set"} for name, value in named.items()}
        recorder = Recorder(path.open("wb"), settings, self.capacity)
        executor = NullExecutor(self.capacity, step_seconds)
        loop = EngineLoop(scheduler, executor, VirtualClock(), depth=self.depth, observers=[recorder])
        drive(loop, sorted(requests, key=lambda one: one.arrival, reverse=True))
        loop.close()
        return path

    def _admission(self) -> Admission | None:
        if self.max_queued_requests is None:
            return None
        return Admission("queue", LatencyModel(), max_requests=self.max_queued_requests)

    def setting(self, folder: Path, requests: Sequence[Request], name: str = "record") -> Setting:
        return read_record(self.record(folder / f"{name}.jsonl", requests))

    def run(self, folder: Path, requests: Sequence[Request]) -> Run:
        return self.setting(folder, requests).runs[0]


def drive(loop: EngineLoop, coming: list[Request]) -> None:
    """coming: the next one last."""
    while coming or not loop.idle:
        while coming and coming[-1].arrival <= loop.clock.now():
            with suppress(RequestRefused):  # it is in the record
                loop.add(coming.pop())
        if loop.idle:
            loop.clock.wait_until(coming[-1].arrival)
            continue
        outcome = loop.advance()
        if isinstance(outcome, WaitUntil):
            loop.clock.wait_until(min([outcome.time] + [one.arrival for one in coming[-1:]]))


def workload(number: int, gap: float = 0.08, seed: int = 4, prefix: int = 0, **same: Any) -> list[Request]:
    """Requests of mixed lengths. prefix: tokens that all prompts begin with. tenants, lanes: taken in turn."""
    rng = random.Random(seed)
    tenants, lanes = same.pop("tenants", ("",)), same.pop("lanes", ("interactive",))
    prompts, outputs = same.pop("prompts", (12, 20, 30, 45, 160)), same.pop("outputs", (4, 8, 14, 22, 40))
    beginning = [rng.randrange(VOCABULARY) for _ in range(prefix)]
    return [
        request(
            str(index),
            beginning + [rng.randrange(VOCABULARY) for _ in range(rng.choice(prompts))],
            output=rng.choice(outputs),
            max_tokens=64,
            arrival=gap * index,
            tenant=tenants[index % len(tenants)],
            lane=lanes[index % len(lanes)],
            **same,
        )
        for index in range(number)
    ]


def engine_of(run: Run) -> EngineRun:
    assert run.engine is not None
    return run.engine


def short_of_blocks(folder: Path, preemption: PreemptionMode = "recompute", host_blocks: int = 0) -> Run:
    """Sequences that outgrow the blocks there are, and share the beginnings of their prompts."""
    engine = Engine(Chunked(64), num_blocks=20, preemption=preemption, host_blocks=host_blocks)
    return engine.run(folder, workload(40, 0.05, prefix=48, tenants=("anna", "bob", "cleo")))


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines(keepends=True)
