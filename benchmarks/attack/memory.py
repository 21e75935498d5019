"""Memory of a process and all its children, sampled beside everything else.

What is counted is PSS: pages that several processes share count once in all.
"""

from __future__ import annotations

import threading
import time
from array import array
from pathlib import Path

EVERY = 0.1  # seconds
_MB = 1e6


def tree(process: int) -> list[int]:
    """It and all below it; those that end meanwhile are left out."""
    found = [process]
    try:
        for tasks in Path(f"/proc/{process}/task").iterdir():
            for child in (tasks / "children").read_text().split():
                found += tree(int(child))
    except OSError:
        pass
    return found


def pss_mb(process: int) -> float:
    """Megabytes of the tree."""
    total = 0
    for one in tree(process):
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024 / _MB


class Memory:
    """Samples in a thread of its own until it is stopped. times: of time.perf_counter; values: megabytes."""

    def __init__(self, process: int):
        self.times, self.values = array("d"), array("d")
        self._process = process
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def between(self, begin: float, end: float) -> list[float]:
        pairs = zip(self.times, self.values, strict=False)
        return [value for at, value in pairs if begin <= at <= end]

    @property
    def now(self) -> float:
        return self.values[-1] if self.values else pss_mb(self._process)

    def _sample(self) -> None:
        while not self._stopped.wait(EVERY):
            value = pss_mb(self._process)
            self.values.append(value)
            self.times.append(time.perf_counter())


def back_after(times: list[float], values: list[float], end: float, most: float) -> float | None:
    """Seconds from `end` until the values are at `most` or below and stay so; None where they do not come back."""
    last_above = None
    for at, value in zip(times, values, strict=True):
        if at >= end and value > most:
            last_above = at
    if last_above is None:
        return 0.0
    return None if last_above >= times[-1] else last_above + EVERY - end
