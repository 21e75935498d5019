"""Small simulated engines and workloads, with few words."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.features import Features
from inflight.core.types.plan import Capacity
from inflight.simulate.fitted import FittedModel, Provenance
from inflight.simulate.simulation import Pool
from inflight.simulate.step_fit import normalized
from inflight.simulate.steps import Step, StepModel
from inflight.workload.workload import Entry, Workload

MODEL = FittedModel(0.01, (0.001,), decode_context=1e-6, prefill_context=1e-6)


def saved_model(path: Path, capacity: Mapping[str, int]) -> str:
    """Save a step model that was calibrated on an engine of this capacity; return the path."""
    sizes = [Features(k, k, k, 40 * k, 0.0) for k in range(1, 9)] + [Features(96, 1, 0, 0, 96 * 400.0)]
    steps = [Step(held, MODEL.seconds(held) * (1 + place % 3 / 50)) for place, held in enumerate(sizes)]
    provenance = Provenance("a test", "a machine", "2026-01-01", 9, capacity={**capacity, "bytes_per_token": 1024.0})
    replace(normalized(MODEL, steps), provenance=provenance).save(path)
    return str(path)


@dataclass(frozen=True)
class Affine:
    """A step model that is nothing but a protocol's worth of methods."""

    token: float = 0.001
    name = "affine"

    def seconds(self, features: Features) -> float:
        return 0.01 + self.token * features.tokens

    def extrapolates(self, features: Features) -> str | None:
        return None


def pool(
    scheduling: SchedulingSettings | None = None,
    model: StepModel = MODEL,
    *,
    num_blocks: int = 400,
    max_rows: int = 8,
    host_blocks: int = 0,
    budget: int | None = 64,
    prefix_caching: bool = True,
    state_snapshots: int = 0,
    **settings: Any,
) -> Pool:
    scheduling = scheduling or SchedulingSettings()
    sizes = (num_blocks, 16, max_rows, 512, 1000, host_blocks, 0.001 if host_blocks else 0.0)
    capacity = Capacity(*sizes, state_snapshots=state_snapshots)
    together = scheduling.strategy in ("static", "dynamic")
    engine = EngineSettings(
        max_num_seqs=max_rows,
        max_num_batched_tokens=None if together else budget,
        enable_prefix_caching=prefix_caching,
    )
    return Pool(capacity, engine, scheduling, lambda number: model, **settings)


def chat(
    requests: int = 30, rate: float = 10.0, seed: int = 0, shared: int = 0, groups: int = 2, **fields: Any
) -> Workload:
    """Poisson arrivals, prompts of 5 to 120 tokens beside those shared in so many groups, answers of 1
    to 60."""
    rng, now, entries = random.Random(seed), 0.0, []
    for index in range(requests):
        now += rng.expovariate(rate)
        prompt = shared + rng.randint(5, 120)
        prefix = {"prefix": (index % groups,), "block_size": shared} if shared else {}
        entries.append(Entry(now, prompt, rng.randint(1, 60), **prefix, **fields))
    return Workload(tuple(entries), "chat")
