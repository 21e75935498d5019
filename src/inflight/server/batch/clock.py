"""The store's clock: seconds that really passed since the store was made. Completion windows are measured by it.

A wall clock is set: a jump of it forward would end every job for good, and nothing could take that back, while a job
that runs on for a while harms nobody and can be cancelled. So only time counts that is known to have passed:

- while the server lives, and between two of its lives under the same boot of the machine, the kernel's time since boot,
  which nobody sets and which counts sleep too;
- across a boot, nothing: how long the machine was off only its wall clock says, and that may be what was set. A job
  keeps what it had left when the store was last told the time, which is every `KEEP_SECONDS` while there are jobs.

The wall clock stamps what people read (`created_at` and the like), and decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

KEEP_SECONDS = 30.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class KeptTime:
    """What the store keeps of its clock. seconds: the clock's. boot, boot_seconds: which boot it was, and how old."""

    seconds: float = 0.0
    boot: str = ""
    boot_seconds: float = 0.0


def _since_boot() -> float:
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _boot() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):  # unknown: then it is never the same
        return ""


@dataclass(frozen=True, slots=True)
class Clocks:
    """The machine's. wall: Unix seconds. since_boot: seconds that no setting of the clock moves. boot: its name."""

    wall: Callable[[], float] = time.time
    since_boot: Callable[[], float] = _since_boot
    boot: str = field(default_factory=_boot)


class StoreClock:
    def __init__(self, kept: KeptTime, clocks: Clocks):
        """kept: what the store was last told."""
        self._clocks = clocks
        self._started = clocks.since_boot()
        same = bool(clocks.boot) and kept.boot == clocks.boot
        self._before = kept.seconds + (max(0.0, self._started - kept.boot_seconds) if same else 0.0)

    def now(self) -> float:
        return self._before + max(0.0, self._clocks.since_boot() - self._started)

    def to_keep(self) -> KeptTime:
        return KeptTime(self.now(), self._clocks.boot, self._clocks.since_boot())
