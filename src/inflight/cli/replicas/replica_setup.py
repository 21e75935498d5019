"""What every replica is made of."""

from __future__ import annotations

from dataclasses import dataclass

from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class ReplicaSetup:
    server: ServerSettings
    engine: EngineSettings
    scheduling: SchedulingSettings
    verbose: bool
