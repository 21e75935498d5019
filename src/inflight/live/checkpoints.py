"""Checkpoints of a record's feed: how it was at some times, so that a stretch of a long record can be drawn closely
without reading all that comes before it.

Knows feeds; keeps no more of them than a hundred, of a bounded size each: what is alive at a time, and no steps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from inflight.live.frames import Frame
from inflight.live.record_index import RecordIndex
from inflight.live.recorded import LEAST_PERIOD, RecordFeed

MOST = 100
LEAST_STEPS = 1000  # between two
CLOSE_FRAMES = 600  # of a stretch that is drawn closely


class Checkpoints:
    def __init__(self, index: RecordIndex, period: float):
        """period: of the frames in which the whole record is drawn."""
        self._index, self._period = index, period
        self._every = max(LEAST_STEPS, index.steps // MOST)
        self._kept: list[RecordFeed] = []
        self._times: list[float] = []

    def offer(self, feed: RecordFeed, time: float) -> None:
        """It is about to read a line, of that time."""
        if feed.place.number >= self._every * (len(self._kept) + 1):
            self._times.append(feed.time)
            self._kept.append(feed.copy())

    def between(self, start: float, end: float) -> Iterator[Frame]:
        """Frames of that time, drawn closely; as far as is known where to begin."""
        found = bisect_right(self._times, start) - 1
        feed = self._kept[found].copy() if found >= 0 else RecordFeed(self._index, self._period)
        yield from feed.between(start, end, max(LEAST_PERIOD, (end - start) / CLOSE_FRAMES))
