"""Collect the rows of a trace: which are kept, which are dropped and why, and what is wrong with the times.

Loaders know units and columns; limits are here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypedDict, Unpack

from inflight.counted import UNBOUNDED
from inflight.metrics.observation import Targets
from inflight.workload.workload import Entry, Workload, WorkloadError


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace.

    Attributes:
        entries: by arrival, the first at 0.
        format: name of the format.
        rows: number of rows read, dropped ones included.
        dropped: reason → rows.
        notes: sentences for readers of results.
        bucket_s: the raster of all times, where it is a tenth of a second or coarser; 0: none.
    """

    entries: tuple[Entry, ...]
    format: str
    rows: int
    dropped: Mapping[str, int]
    notes: tuple[str, ...] = ()
    bucket_s: float = 0.0

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return self.entries[-1].arrival - self.entries[0].arrival if self.entries else 0.0

    def workload(self, name: str, concurrency: int | None = None, closed: bool = False) -> Workload:
        return Workload(self.entries, name, concurrency, closed, self.notes)


BYTES_PER_TOKEN = 4  # of UTF-8: about what vocabularies of 32,000 to 150,000 tokens have for English prose
NO_OUTPUT = "no output tokens (a call that failed or was cut off)"
_MAX_TIME_S = 1e15
_MIN_RASTER_MS = 100  # finer ones are not worth a note
_MIN_SIMULTANEOUS = 0.1  # share of requests at the time of another one, from which on a raster is worth a note
_LONG_GAP_S = 60.0


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read a trace, where its format leaves something open.

    Attributes:
        count_tokens: counts the tokens of a text; None: they are estimated, with a note.
        output_tokens: of rows that state none.
        turns: maximum turns of a conversation whose text is known; None: all.
    """

    count_tokens: Callable[[str], int] | None = None
    output_tokens: int = 256
    turns: int | None = 1


class EntryFields(TypedDict, total=False):
    """Fields of an `Entry` beside its time and lengths."""

    max_tokens: int | None
    prefix: tuple[int, ...]
    block_size: int
    prompt: str | tuple[int, ...] | None
    cache_salt: str
    session: str
    after: int | None
    traffic: str
    lane: str
    tenant: str
    priority: int | None
    targets: Targets
    program: str


class Rows:
    """The rows of a trace while it is read."""

    def __init__(self, path: Path):
        self.entries: list[Entry] = []
        self.path = path
        self.read: int | None = None  # number of rows, where one is not one entry
        self.counted = "line"  # the unit of rows' numbers
        self._origin: float | None = None
        self._reasons: dict[str, list[int]] = {}  # reason: rows, first line
        self._broken = 0
        self._notes: list[str] = []

    def take(
        self,
        line: int,
        arrival: float,
        prompt_tokens: int,
        output_tokens: int,
        **fields: Unpack[EntryFields],
    ) -> bool:
        """Keep a row if its figures are possible, and return whether it was kept. arrival: seconds from any origin."""
        if not -_MAX_TIME_S < arrival < _MAX_TIME_S:
            return self.broken(line, "its time is not a number of seconds")
        if not (0 < output_tokens <= UNBOUNDED and 0 < prompt_tokens <= UNBOUNDED):
            if prompt_tokens < 0 or output_tokens < 0 or max(prompt_tokens, output_tokens) > UNBOUNDED:
                return self.broken(line, f"a length outside 0 to {UNBOUNDED:,} tokens")
            return self.drop(line, NO_OUTPUT if prompt_tokens else "no prompt tokens")
        if self._origin is None:
            self._origin = arrival  # subtracted here, so that few entries are made twice
        self.entries.append(Entry(arrival - self._origin, prompt_tokens, output_tokens, **fields))
        return True

    def rate(self) -> float:
        """Return the requests per second from the first time to the last; 0 where all came at once."""
        times = [entry.arrival for entry in self.entries]
        span = max(times, default=0.0) - min(times, default=0.0)
        return len(times) / span if span else 0.0

    def scale_times(self, factor: float) -> None:
        """Multiply the times of all rows so far."""
        self.entries[:] = [entry.moved(factor * entry.arrival, entry.after) for entry in self.entries]

    def broken(self, line: int, reason: str) -> bool:
        """Count and drop a malformed row; return False."""
        self._broken += 1
        return self.drop(line, f"malformed: {reason}")

    def drop(self, line: int, reason: str) -> bool:
        self._reasons.setdefault(reason, [0, line])[0] += 1
        return False

    def note(self, sentence: str) -> None:
        self._notes.append(sentence)

    def finish(self, format: str, in_order: bool = True) -> Trace:
        """Return the trace. format, in_order: as of `TraceFormat`. Raises WorkloadError for a file that has no rows."""
        dropped = {reason: rows for reason, (rows, _) in self._reasons.items()}
        read = len(self.entries) + sum(dropped.values()) if self.read is None else self.read
        self._refuse(format, read)
        notes = [
            f"Dropped {rows:,} of {read:,} rows: {reason}; the first is {self.counted} {line:,}."
            for reason, (rows, line) in self._reasons.items()
        ]
        moved = ordered(self.entries)
        if in_order and moved:
            notes.append(
                f"Rows that came before the row above them: {moved:,}; all were put in the order of their times."
            )
        bucket = raster(self.entries)
        if bucket:
            notes.append(
                f"All times are multiples of {bucket:g} s, so that rounding made requests come in clumps; spread them "
                "within these buckets to undo that."
            )
        return Trace(tuple(self.entries), format, read, dropped, (*notes, *gaps(self.entries), *self._notes), bucket)

    def _refuse(self, format: str, read: int) -> None:
        malformed = [reason for reason in self._reasons if reason.startswith("malformed")]
        if 2 * self._broken > read:
            reason = max(malformed, key=lambda one: self._reasons[one][0])
            line = self._reasons[reason][1]
            raise WorkloadError(
                f"{self.path}: {self._broken:,} of {read:,} rows are malformed, too many for a trace in the format "
                f"{format}; most often {reason.removeprefix('malformed: ')}, first in {self.counted} {line:,}."
            )
        if not self.entries:
            why = "; ".join(f"{rows:,}: {reason}" for reason, (rows, _) in self._reasons.items()) or "there are none"
            raise WorkloadError(f"{self.path} has no row in the format {format} that can be used, of {read:,}: {why}.")


def ordered(entries: list[Entry]) -> int:
    """Sort entries by arrival, the first at 0, with their links to earlier turns; return how many came before their
    predecessor. A turn that would come before the one it follows comes with it."""
    times = [entry.arrival for entry in entries]
    moved = sum(time < before for before, time in pairwise(times))
    first = min(times, default=0.0)
    if not moved and not first:
        return 0
    if not moved:
        entries[:] = [entry.moved(entry.arrival - first, entry.after) for entry in entries]
        return 0
    for index, entry in enumerate(entries):
        if entry.after is not None:
            times[index] = max(times[index], times[entry.after])
    order = sorted(range(len(entries)), key=times.__getitem__)
    new_index = dict(zip(order, range(len(order)), strict=True))
    entries[:] = [
        entry.moved(times[index] - first, None if entry.after is None else new_index[entry.after])
        for index, entry in ((index, entries[index]) for index in order)
    ]
    return moved


def raster(entries: list[Entry]) -> float:
    """Return the largest number of seconds of which all arrivals are multiples, if it is coarse and at least a tenth of
    them come at the time of another one; 0: none."""
    step = 0
    for entry in entries:
        milliseconds = entry.arrival * 1000
        whole = round(milliseconds)
        if abs(milliseconds - whole) > 1e-3:
            return 0.0
        step = math.gcd(step, whole)
        if 0 < step < _MIN_RASTER_MS:
            return 0.0
    distinct = len({entry.arrival for entry in entries})
    return step / 1000 if distinct <= (1 - _MIN_SIMULTANEOUS) * len(entries) else 0.0


def gaps(entries: list[Entry]) -> list[str]:
    """Return a sentence on the longest time without arrivals, where it stands out."""
    if len(entries) < 3:
        return []
    times = [entry.arrival for entry in entries]
    longest, start = max((later - time, time) for time, later in pairwise(times))
    mean = times[-1] / (len(times) - 1)
    if longest < max(_LONG_GAP_S, 20 * mean):
        return []
    return [f"Nothing comes for {longest:,.0f} s from {start:,.0f} s on; gaps are {mean:.3g} s on average."]


class TextLengths:
    """Counts or estimates the tokens of texts."""

    def __init__(self, count_tokens: Callable[[str], int] | None):
        self._count = count_tokens
        self._used = False

    def tokens(self, text: str) -> int:
        self._used = True
        if self._count is not None:
            return self._count(text)
        return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)

    def note_estimates(self, rows: Rows) -> None:
        if self._used and self._count is None:
            rows.note(
                f"Lengths of texts are estimated at one token for {BYTES_PER_TOKEN} bytes of UTF-8, since no tokenizer "
                "was given; other languages than English, and code, have more tokens than that."
            )
