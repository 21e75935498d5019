"""How much of this machine others had while something was measured: other processes, and other guests of its host.

From Linux's own account of its processors (/proc/stat); elsewhere nothing is known.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
IDLE, WAITING, STOLEN = 3, 4, 7  # places in a processor's line: user nice system idle iowait irq softirq steal …
COUNTED = 8  # what follows is part of user's time


@dataclass(frozen=True, slots=True)
class Account:
    """Seconds of the usable processors up to now: in all, worked, and worked by this process. stolen: that they wanted
    to work while the host gave the time to others, part of neither."""

    total: float
    worked: float
    own: float
    stolen: float


def account(stat: Path = STAT) -> Account | None:
    """None where the system does not say."""
    usable = {f"cpu{number}" for number in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else set()
    try:
        lines = [line.split() for line in stat.read_text().splitlines() if line.startswith("cpu")]
        ticks = [[int(one) for one in line[1 : 1 + COUNTED]] for line in lines if line[0] in usable]
        second = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None
    if not ticks or any(len(one) < COUNTED for one in ticks):
        return None
    total = sum(map(sum, ticks)) / second
    stolen = sum(one[STOLEN] for one in ticks) / second
    idle = sum(one[IDLE] + one[WAITING] for one in ticks) / second
    times = os.times()
    return Account(total, total - idle - stolen, times.user + times.system, stolen)


def others_share(before: Account | None, after: Account | None) -> float | None:
    """Of the processors' time between the two, what others had."""
    if before is None or after is None or after.total <= before.total:
        return None
    others = (after.worked - before.worked) - (after.own - before.own) + (after.stolen - before.stolen)
    return max(0.0, others) / (after.total - before.total)
