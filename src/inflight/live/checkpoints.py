"""Store copies of a record's feed at some times, to draw a part of a long record in detail.

A copy holds only the requests in flight, no steps, so its size is bounded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from inflight.live.frames import Frame
from inflight.live.record_index import RecordIndex
from inflight.live.recorded import MIN_PERIOD, RecordFeed

MAX_CHECKPOINTS = 100
MIN_STEPS = 1000  # between two checkpoints
CLOSE_FRAMES = 600  # of a part that is drawn in detail


class Checkpoints:
    """The checkpoints of one record."""

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
