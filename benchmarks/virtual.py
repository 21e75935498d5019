"""An engine in virtual time: the real scheduler, a simulated device, and step times of one real engine."""

from __future__ import annotations

import math
import random

from benchmarks.drive import Observer
from benchmarks.engines import simulated_loop
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.features import Features
from inflight.core.types.plan import Capacity
from inflight.engine.loop import EngineLoop
from inflight.simulate.fitted import FittedModel
from inflight.simulate.steps import StepModel

VOCABULARY = 32_000
ROWS, BUDGET = 32, 96  # one token for each row and 64 of prompts: half of what the engine chooses on a CPU
MAX_MODEL_LEN = 4096
COST = FittedModel(step=0.0255, token=(0.00164,), decode_context=1e-7, prefill_context=7e-7)


class NoisyCost:
    """The same steps on a machine that others use too: times vary by a third, and every fiftieth is three times as
    long. Seeded, so that every run has the same noise."""

    name = "stated coefficients, with noise"

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)

    def seconds(self, features: Features) -> float:
        factor = math.exp(self._rng.gauss(0.0, 0.35)) * (3 if self._rng.random() < 0.02 else 1)
        return COST.seconds(features) * factor

    def extrapolates(self, features: Features) -> str | None:
        return COST.extrapolates(features)


def virtual_engine(
    scheduling: SchedulingSettings,
    cost: StepModel = COST,
    observer: Observer | None = None,
    *,
    num_blocks: int = 8192,
    host_blocks: int = 0,
    prefix_caching: bool = True,
) -> EngineLoop:
    """An engine of ROWS rows and BUDGET tokens a step, put together as the real ones are, on virtual time."""
    moved_block = cost.moved_block if isinstance(cost, FittedModel) else 0.0
    capacity = Capacity(num_blocks, 16, ROWS, MAX_MODEL_LEN, VOCABULARY, host_blocks, moved_block)
    settings = EngineSettings(max_num_seqs=ROWS, max_num_batched_tokens=BUDGET, enable_prefix_caching=prefix_caching)
    return simulated_loop(capacity, settings, scheduling, cost, observer)
