"""The run of the reader's test: 40 seconds of a small engine, through the real scheduler, on a virtual clock.

Chats come all the time; digests wait in the batch lane for what chats leave; at 12 s a contract comes whose prompt
needs most of the memory; from 24 s to 27 s something else has the machine, and every step takes three times as long.
The same each time that it is made. `python -m live.reader.run FILE` (in tests/) writes the record.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from core.builders import request
from report.recorded import drive

from inflight.core.estimation.latency import LatencyModel
from inflight.core.policies.fcfs import Fcfs
from inflight.core.queueing.lanes import LaneSettings
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.features import features
from inflight.core.types.plan import BatchPlan, Capacity
from inflight.core.types.request import SLO, Request
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.engine.recorder import Recorder
from inflight.testing.null import NullExecutor

ROWS, BLOCKS, BLOCK_SIZE, STEP_TOKENS, VOCABULARY = 8, 88, 16, 48, 1000
CONTRACT_AT, SLOW, SLOWER = 12.0, (24.0, 27.0), 3.0
END = 40.0


def requests() -> list[Request]:
    rng = random.Random(20)
    found = []
    at, number = 0.0, 0  # the page's clock begins with the first
    while at < END - 4:
        number += 1
        found.append(_request(rng, f"chat-{number:02}", at, rng.randint(24, 60), rng.randint(30, 70), "interactive"))
        at += 0.4 * (number == 1) + rng.expovariate(1.3)
    for number in range(1, 25):
        found.append(_request(rng, f"digest-{number:02}", 0.9 * number, rng.randint(90, 150), 150, "batch"))
    found.append(_request(rng, "contract", CONTRACT_AT, 800, 40, "interactive"))
    return sorted(found, key=lambda one: one.arrival, reverse=True)


def _request(rng: random.Random, name: str, at: float, prompt: int, output: int, lane: str) -> Request:
    foreground = lane == "interactive"
    return request(
        name,
        [rng.randrange(VOCABULARY) for _ in range(prompt)],
        output=output,
        arrival=round(at, 3),
        lane=lane,
        tenant="legal" if name == "contract" else "support" if foreground else "archive",
        slo=SLO(ttft=0.5, itl=0.08) if foreground else SLO(),
    )


def record(path: Path) -> Path:
    capacity = Capacity(BLOCKS, BLOCK_SIZE, ROWS, 1024, VOCABULARY)
    clock, noise = VirtualClock(), random.Random(5)

    def seconds(plan: BatchPlan) -> float:
        slower = SLOWER if SLOW[0] <= clock.now() < SLOW[1] else 1.0
        return (0.02 + 0.0006 * features(plan).tokens) * slower * noise.uniform(0.95, 1.05)

    lanes = [
        LaneSettings(name="interactive", policy=Fcfs()),
        LaneSettings(name="batch", policy=Fcfs(), background=True, step_target="off"),
    ]
    scheduler = Scheduler(
        SchedulerConfig(capacity, Chunked(STEP_TOKENS), lanes, latency=LatencyModel(), token_budget=STEP_TOKENS)
    )
    settings = {
        name: {"value": value, "reason": "as set"}
        for name, value in (
            ("strategy", "chunked"),
            ("policy", "fcfs"),
            ("max_num_batched_tokens", STEP_TOKENS),
            ("prefix_caching", True),
        )
    }
    recorder = Recorder(path.open("wb"), settings, capacity, created="2026-01-01T00:00:00+00:00")
    loop = EngineLoop(scheduler, NullExecutor(capacity, seconds), clock, observers=[recorder])
    drive(loop, requests())
    loop.close()
    return path


if __name__ == "__main__":
    record(Path(sys.argv[1]))
