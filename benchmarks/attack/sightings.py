"""Read what honest clients saw from the files that their processes write, and what of it lies within a time.

Times are of time.perf_counter, which is one clock for all processes of a machine.
"""

from __future__ import annotations

import json
import time
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

Window = tuple[float, float]


class _Lines:
    """Read the lines of a file that grows, each once."""

    def __init__(self, path: Path):
        self._path = path
        self._read = 0

    def new(self) -> Iterator[Any]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # half written
                self._read += len(line)
                yield json.loads(line)


@dataclass(slots=True)
class Seen:
    """Within some windows. Seconds. health: waits for /health. gaps: between tokens of a stream. own_health, own_gaps:
    the same without the time for which the server's event loop was ready and others had the core. wrong: streams that
    did not come to their end or had another text, by why."""

    health: list[float] = field(default_factory=list)
    unanswered: int = 0
    gaps: list[float] = field(default_factory=list)
    own_health: list[float] = field(default_factory=list)
    own_gaps: list[float] = field(default_factory=list)
    ttfts: list[float] = field(default_factory=list)
    same: int = 0
    wrong: Counter[str] = field(default_factory=Counter)


class Sightings:
    def __init__(self, health: Path, honest: Path):
        self._health_lines, self._honest_lines = _Lines(health), _Lines(honest)
        self._health: list[tuple[float, float, float]] = []
        self._times: list[float] = []
        self._queued: list[float] = []  # seconds for which the event loop had waited for a core until then
        self._streams: list[dict[str, Any]] = []
        self._ready = False

    def wait_until_ready(self, alive: Iterable[Any], seconds: float = 60.0) -> None:
        """alive: the processes (Popen) that must not end. Raises RuntimeError."""
        end = time.monotonic() + seconds
        while not (self._ready and self._health):
            if time.monotonic() > end or any(one.poll() is not None for one in alive):
                raise RuntimeError("The honest clients had no answer before any attack.")
            time.sleep(0.05)
            self.read()

    def read(self) -> None:
        for at, wait, failed, now, queued in self._health_lines.new():
            self._health.append((at, wait, failed))
            self._times.append(now)
            self._queued.append(queued)
        for line in self._honest_lines.new():
            if "ready" in line:
                self._ready = True
            else:
                self._streams.append(line)

    def last_answer(self) -> float:
        """When /health was last answered."""
        self.read()
        return max((at + wait for at, wait, failed in self._health[-500:] if not failed), default=0.0)

    def within(self, *windows: Window) -> Seen:
        self.read()
        seen = Seen()
        for at, wait, failed in self._health:
            if _holds(windows, at):
                seen.health.append(wait)
                seen.own_health.append(self._own(at, at + wait))
                seen.unanswered += int(failed)
        for stream in self._streams:
            if any(stream["sent"] <= end and begin <= stream["ended"] for begin, end in windows):
                self._note(seen, stream, windows)
        return seen

    def _note(self, seen: Seen, stream: dict[str, Any], windows: Sequence[Window]) -> None:
        arrivals = stream["arrivals"]
        if arrivals and stream["status"] == 200 and _holds(windows, stream["sent"]):
            seen.ttfts.append(arrivals[0] - stream["sent"])
        for earlier, later in pairwise(arrivals[:-1]):  # the last piece ([DONE]) may come by itself, and is no token
            if _holds(windows, later):
                seen.gaps.append(later - earlier)
                seen.own_gaps.append(self._own(earlier, later))
        if not _holds(windows, stream["ended"]):
            return
        if stream["same"]:
            seen.same += 1
        elif stream["complete"]:
            seen.wrong["another text"] += 1
        else:
            seen.wrong[f"{stream['status'] or 'no answer'}, not to its end"] += 1

    def _own(self, begin: float, end: float) -> float:
        """Return the time between two moments, without that for which the event loop waited for a core."""
        return max(0.0, end - begin - (self._queued_until(end) - self._queued_until(begin)))

    def _queued_until(self, at: float) -> float:
        """Linear between two looks."""
        place = bisect(self._times, at)
        if not 0 < place < len(self._times):
            return self._queued[place - 1] if place else (self._queued or [0.0])[0]
        (before, after), (low, high) = self._times[place - 1 : place + 1], self._queued[place - 1 : place + 1]
        return low + (high - low) * (at - before) / (after - before)


def _holds(windows: Iterable[Window], at: float) -> bool:
    return any(begin <= at <= end for begin, end in windows)
