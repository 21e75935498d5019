"""Replay a run from a file, line by line: a record, or frames that a page has saved."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from inflight.live.frames import Frame, FrameError, Hello, Problem, decode
from inflight.live.record_index import RecordIndex, read_index
from inflight.live.recorded import MIN_PERIOD, RecordFeed, hello_of, period_of
from inflight.records.checked import MAX_BYTES
from inflight.records.schema import RecordError

MAX_CHECKPOINTS = 100
MIN_STEPS = 1000  # between two checkpoints
CLOSE_FRAMES = 600  # of a part that is drawn in detail


class Checkpoints:
    def __init__(self, index: RecordIndex, period: float):
        """Start without checkpoints. period: seconds of a frame of the whole record."""
        self._index, self._period = index, period
        self._every = max(MIN_STEPS, index.steps // MAX_CHECKPOINTS)
        self._stored: list[RecordFeed] = []
        self._times: list[float] = []

    def offer(self, feed: RecordFeed, time: float) -> None:
        """Store a copy of the feed, before it reads a line of this time, if the last checkpoint is old enough."""
        if feed.position.number >= self._every * (len(self._stored) + 1):
            self._times.append(feed.time)
            self._stored.append(feed.copy())

    def between(self, start: float, end: float) -> Iterator[Frame]:
        """Yield detailed frames of this interval, read from the last checkpoint before it."""
        found = bisect_right(self._times, start) - 1
        feed = self._stored[found].copy() if found >= 0 else RecordFeed(self._index, self._period)
        yield from feed.between(start, end, max(MIN_PERIOD, (end - start) / CLOSE_FRAMES))


class Replay(Protocol):
    """One run. Each call makes its frames again."""

    @property
    def hello(self) -> Hello: ...

    def frames(self) -> Iterator[Frame | Problem]:
        """Yield all frames; a Problem at the end if the file is damaged."""

    def between(self, start: float, end: float) -> Iterator[Frame]:
        """Yield detailed frames of an interval; none if the run has no more detail."""


@dataclass(frozen=True, slots=True)
class RecordReplay:
    """Replay a record. period: seconds of a frame."""

    index: RecordIndex
    title: str
    period: float
    checkpoints: Checkpoints

    @property
    def hello(self) -> Hello:
        return hello_of(self.index, self.title, self.period)

    def frames(self) -> Iterator[Frame | Problem]:
        feed = RecordFeed(self.index, self.period)
        yield from feed.frames(self.checkpoints.offer)
        for note in feed.notes:
            yield Problem(note)

    def between(self, start: float, end: float) -> Iterator[Frame]:
        return self.checkpoints.between(start, end)


@dataclass(frozen=True, slots=True)
class SavedReplay:
    """Replay frames that a page has saved."""

    path: Path
    hello: Hello

    def frames(self) -> Iterator[Frame | Problem]:
        with self.path.open("rb") as file:
            file.readline(MAX_BYTES + 1)
            number = 1
            while line := file.readline(MAX_BYTES + 1):
                number += 1
                try:
                    message = decode(line)
                except FrameError:
                    yield Problem(f"Line {number} of {self.path.name} is no frame; the part before is shown.")
                    return
                if isinstance(message, Frame):
                    yield message

    def between(self, start: float, end: float) -> Iterator[Frame]:
        """Return no frames: saved frames have no more detail."""
        return iter(())


def read_replay(path: Path, title: str = "") -> Replay:
    """Open a file for replay. Raises RecordError if it is neither a record nor saved frames."""
    with path.open("rb") as file:
        beginning = file.readline(MAX_BYTES + 1)
    title = title or path.stem
    if beginning.startswith(b'{"type":"hello"'):
        try:
            hello = decode(beginning)
        except FrameError as error:
            raise RecordError(f"{path}, line 1: {error}") from None
        if isinstance(hello, Hello) and hello.span is not None:
            return SavedReplay(path, replace(hello, title=title, source="record", sees_all=True))
    if not beginning.strip():
        raise RecordError(f"{path} is empty: 0 lines of a run; give a record (--record), or frames that a page saved.")
    index = read_index(path)
    period = period_of(index)
    return RecordReplay(index, title, period, Checkpoints(index, period))
