"""The clock of the data directory: seconds that really passed since it was made. Completion windows are measured by it.

The kernel's time since boot counts, which nothing sets and which includes sleep; across a boot of the machine nothing
counts, since only its wall clock says how long it was off. One row of the database relates the two, so that all
processes of a server have the same time. The wall clock stamps what people read (`created_at`), and decides nothing.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SAVE_SECONDS = 30.0  # between two writes of the time while there are jobs: what a power cut may lose
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _since_boot() -> float:
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _boot() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):  # unknown: then it is never the same
        return ""


@dataclass(frozen=True, slots=True)
class Clocks:
    """The machine's clocks. wall: Unix seconds. since_boot: seconds that no setting moves. boot: the id of the boot."""

    wall: Callable[[], float] = time.time
    since_boot: Callable[[], float] = _since_boot
    boot: str = field(default_factory=_boot)


class StoreClock:
    """Seconds of the data directory, as its row in the database says after `resume`."""

    def __init__(self, connection: sqlite3.Connection, clocks: Clocks):
        row = connection.execute("SELECT seconds, boot_seconds FROM clock").fetchone()
        self._clocks, self._start = clocks, float(row["boot_seconds"])
        self._before = float(row["seconds"]) - self._start

    def now(self) -> float:
        return self._before + max(self._start, self._clocks.since_boot())

    def save(self, connection: sqlite3.Connection) -> None:
        """Write the time, so that a boot of the machine costs nothing before it."""
        now = self.now()
        connection.execute("UPDATE clock SET seconds = ?, boot_seconds = ?", (now, now - self._before))


def resume(connection: sqlite3.Connection, clocks: Clocks) -> None:
    """Go on from the saved time, once at the start of a server: of the time since then, what this boot has seen counts.

    Args:
        connection: In a transaction.
    """
    (boot,) = connection.execute("SELECT boot FROM clock").fetchone()
    if not clocks.boot or boot != clocks.boot:
        connection.execute("UPDATE clock SET boot = ?, boot_seconds = ?", (clocks.boot, clocks.since_boot()))
