"""Simulated clusters of one engine's kind, before any policy: the program's own, or Ray's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.routing.ray_prefix import RayPrefix
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.plan import Capacity
from inflight.routing import registry
from inflight.routing.registry import RouterEntry
from inflight.simulate.fitted import FittedModel
from inflight.simulate.simulation import Pool, SimulationSetup
from inflight.workload.arrivals import Poisson
from inflight.workload.classes import TrafficClass, read_classes
from inflight.workload.synthetic import synthesize
from inflight.workload.workload import Workload

SHAPES = {path.stem: path for path in sorted((Path(__file__).parent / "shapes").glob("*.toml"))}
RAY = {"ray-prefix": float("inf"), "ray-prefix-10": 10.0}  # as it is by default, and with a threshold
BLOCK = 16


def know_ray() -> None:
    """From now on its router has a name like the others."""
    for name, threshold in RAY.items():
        registry.ROUTERS[name] = _ray(name, threshold)


def _ray(name: str, threshold: float) -> RouterEntry:
    return RouterEntry(name=name, make=lambda seed, options: RayPrefix(seed, threshold))


@dataclass(frozen=True, slots=True)
class Engine:
    """model: of its steps. kv_tokens: that its memory holds."""

    model: FittedModel
    rows: int
    budget: int
    kv_tokens: int

    def setup(self, router: str, replicas: int, seed: int = 0) -> SimulationSetup:
        capacity = Capacity(self.kv_tokens // BLOCK, BLOCK, self.rows, 16_384, 32_000)
        settings = EngineSettings(max_num_seqs=self.rows, max_num_batched_tokens=self.budget)
        scheduling = SchedulingSettings.of(early_end_tokens=0)
        pool = Pool(capacity, settings, scheduling, lambda number: self.model, replicas, router)
        return SimulationSetup(pool, seed=seed, content_seed=seed)


def shape(name: str) -> Sequence[TrafficClass]:
    return read_classes(SHAPES[name])


def traffic(classes: Sequence[TrafficClass], rate: float, requests: int, seed: int) -> Workload:
    """rate: conversations, or single requests, a second."""
    return synthesize(classes, arrivals=Poisson(rate), requests=requests, seed=seed)
