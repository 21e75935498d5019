"""The models of a server with several, as its file has them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.server.settings import ServerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class FileModel:
    """A table. idle: seconds; size: GiB; None: not set."""

    name: str
    aliases: tuple[str, ...]
    pin: bool
    weight: float
    idle: float | None
    size: float | None
    engine: EngineSettings
    scheduling: SchedulingSettings
    server: ServerSettings
    record: Path | None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsFile:
    """memory: GiB; None: what is free decides. max_wait: seconds."""

    path: Path
    memory: float | None
    max_wait: float
    default: str | None
    models: tuple[FileModel, ...]
