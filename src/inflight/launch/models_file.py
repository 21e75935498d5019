"""Define the models of a server with several models, as read from the file of `--models`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.server.settings import ServerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class FileModel:
    """One model's table.

    Attributes:
        idle: Seconds without requests after which the model is unloaded; None: not set.
        size: Memory in GiB; None: not set.
    """

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
    """The whole file.

    Attributes:
        memory: Budget of all models in GiB; None: derived from the free memory.
        max_wait: Seconds that a request waits for its model to load.
    """

    path: Path
    memory: float | None
    max_wait: float
    default: str | None
    models: tuple[FileModel, ...]
