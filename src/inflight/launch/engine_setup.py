"""Define the settings of an engine, and the first message to its process."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.server.logs import Format
from inflight.server.settings import ServerSettings


class CoreSharing(Struct, frozen=True):
    """Say how an engine shares the CPU's cores with other engines.

    Attributes:
        claims: Descriptor of the shared table of claims.
        slot: This engine's slot in the table.
        weight: This engine's share, relative to the others'.
    """

    claims: int
    slot: int
    weight: float


class ModelSetup(Struct, frozen=True, kw_only=True):
    """Settings by which a server's engine is loaded. record: the file that it writes its steps to."""

    server: ServerSettings
    engine: EngineSettings
    scheduling: SchedulingSettings
    verbose: bool
    record: Path | None = None


class EngineSetup(ModelSetup, frozen=True, kw_only=True):
    """Describe an engine and its process.

    Attributes:
        serial: Unique number of the process.
        folder: Holds the sockets between the processes.
        nbytes: Estimated memory of the engine in bytes; 0: unknown.
        sharing: None if there is no other engine.
    """

    serial: int
    folder: Path
    log_format: Format
    log_level: str
    nbytes: int = 0
    sharing: CoreSharing | None = None
