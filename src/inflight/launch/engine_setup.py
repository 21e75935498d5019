"""The first message to an engine's process: which engine it builds."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.server.logs import Format
from inflight.server.settings import ServerSettings


class CoreSharing(Struct, frozen=True):
    """How an engine shares the cores with others.

    Attributes:
        claims: Descriptor of the table that they share.
        slot: This engine's in it.
        weight: This engine's among equals.
    """

    claims: int
    slot: int
    weight: float


class EngineSetup(Struct, frozen=True):
    """An engine, and its process.

    Attributes:
        serial: Of the process; no other one has the same.
        folder: Of the sockets between the processes.
        nbytes: Memory that the engine was estimated to take; 0: unknown.
        sharing: None where there is no other engine.
    """

    serial: int
    folder: Path
    server: ServerSettings
    engine: EngineSettings
    scheduling: SchedulingSettings
    record: Path | None
    verbose: bool
    log_format: Format
    log_level: str
    nbytes: int = 0
    sharing: CoreSharing | None = None
