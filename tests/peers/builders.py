"""Fake engines, jobs and observations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.contest import Contest, Rules
from benchmarks.peers.engines import Copy, Engine
from benchmarks.peers.process import EngineProcess
from benchmarks.peers.stepping import Job
from benchmarks.peers.trials import Sizes
from inflight.metrics.observation import Observation

MODULE = "peers.fake_engine"
ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[1])}
SMALL = Sizes(batches=(1, 2), decode_prompt=8, decode_outputs=6, prefills=(5,), mixed=3)
COPY = Copy(Path(), "in stone", "in bronze")


def job(**settings: Any) -> Job:
    return Job("nowhere", "bf16", 1, 4, 64, 128, 1, settings)


def process(patience: float = 60.0, **settings: Any) -> EngineProcess:
    return EngineProcess(Path(sys.executable), MODULE, ENVIRONMENT, job(**settings), patience)


def engine(name: str) -> Engine:
    return Engine(name, Path(sys.executable), MODULE, {"bf16": lambda: COPY}, ENVIRONMENT)


def contest(
    jobs: Mapping[str, Job], probe: Callable[[], float] = lambda: 50e9, sizes: Sizes = SMALL, alike: float = 0.15
) -> Contest:
    rules = Rules(probe, lambda: 0.25, alike, settle=0.0)
    return Contest("bf16", [engine(name) for name in jobs], jobs, dict.fromkeys(jobs, COPY), sizes, rules)


def observed(*times: float, prompt_tokens: int = 4, intended: float = 0.0) -> Observation:
    return Observation(
        "one",
        intended=intended,
        ended=times[-1],
        first_token=times[0],
        last_token=times[-1],
        token_times=times,
        prompt_tokens=prompt_tokens,
        output_tokens=len(times),
        longest_output=len(times),
    )


def every(start: float, gap: float, count: int) -> Sequence[float]:
    return [start + gap * number for number in range(count)]
