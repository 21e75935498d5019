"""Opening an engine from the command line, with progress while a large model loads."""

from __future__ import annotations

from pathlib import Path

from inflight.build import Engine, build_engine
from inflight.cli.progress import Progress
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings


def open_engine(settings: EngineSettings, scheduling: SchedulingSettings, record: Path | None = None) -> Engine:
    progress = Progress("Loading the model", "M parameters")
    try:
        return build_engine(settings, scheduling, record, lambda done, total: progress.update(done / 1e6, total / 1e6))
    finally:
        progress.close()
