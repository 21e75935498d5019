"""How busy the machine is with what is not measured."""

from __future__ import annotations

import time
from pathlib import Path

_STAT = Path("/proc/stat")


def busy_share(seconds: float = 1.0) -> float:
    """Return the busy share of all cores over so many seconds; time that a hypervisor gave to others counts."""
    busy, whole = _ticks(_STAT.read_text())
    time.sleep(seconds)
    busy_then, whole_then = _ticks(_STAT.read_text())
    return (busy_then - busy) / max(whole_then - whole, 1)


def _ticks(text: str) -> tuple[int, int]:
    """Busy ones and all: user, nice, system, idle, iowait, irq, softirq, steal come first, guests are in user."""
    values = [int(word) for word in text.partition("\n")[0].split()[1:9]]
    return sum(values) - values[3] - values[4], sum(values)
