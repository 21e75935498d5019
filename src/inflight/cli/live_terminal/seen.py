"""What a terminal keeps of the feed: the last frame, requests by their numbers, and the batch's last columns.

Knows messages as they come; not how they are shown.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from msgspec.structs import replace

from inflight.live.frames import BlocksPart, Frame, Hello, Message, RequestInfo

MOST_COLUMNS = 400
_NOTABLE = (4, 2, 3, 1, 0)  # of a run's work, the larger the more notable: prompts before single tokens


class Cell(NamedTuple):
    """What a row did in a frame."""

    sequence: int
    work: int


Column = dict[int, Cell]  # by row


def _with_tiers(now: BlocksPart | None, before: BlocksPart | None) -> BlocksPart | None:
    """Tiers are told with maps of blocks, twice a second."""
    if now is None or before is None or now.map:
        return now or before
    return replace(now, host=before.host, disk=before.disk)


class Engine:
    """One of several: the last that it told."""

    def __init__(self, hello: Hello):
        self.hello = hello
        self.frame: Frame | None = None
        self.blocks: BlocksPart | None = None

    def add(self, frame: Frame) -> None:
        self.frame = frame
        self.blocks = _with_tiers(frame.blocks, self.blocks)


class Seen:
    """Taken in by one thread and read by another, under `lock`. trouble: why nothing comes; "": it does."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.hello: Hello | None = None
        self.frame: Frame | None = None
        self.blocks: BlocksPart | None = None
        self.trouble = ""
        self.columns: deque[Column] = deque(maxlen=MOST_COLUMNS)
        self.requests: dict[int, RequestInfo] = {}
        self.engines: dict[str, Engine] = {}  # of several, those that tell what they do
        self.preempted = self.ended = 0
        self.paused = False

    def take(self, message: Message | str) -> None:
        with self.lock:
            if isinstance(message, str):
                self.trouble = message
            elif isinstance(message, Hello):
                self._greet(message)
            elif isinstance(message, Frame):
                self._add(message)
            else:
                self.trouble = message.sentence

    def _greet(self, hello: Hello) -> None:
        if hello.engine:
            self.engines[hello.engine] = Engine(hello)
            return
        if self.hello is None or self.hello.server != hello.server:
            self.columns.clear()
            self.requests.clear()
            self.engines.clear()
            self.preempted = self.ended = 0
        self.hello, self.trouble = hello, ""
        self.requests.update({one.number: one for one in hello.requests})

    def _add(self, frame: Frame) -> None:
        self.trouble = ""
        if frame.engine:
            self._add_of_one(frame)
            return
        self.requests.update({one.number: one for one in frame.requests})
        for one in frame.ended:
            self.requests.pop(one.info.number, None)
        self.preempted += len(frame.preempted)
        self.ended += len(frame.ended)
        if self.paused:
            return
        self.frame = frame
        self.blocks = _with_tiers(frame.blocks, self.blocks)
        there = {one.name for one in frame.members if one.state != "not loaded"}
        self.engines = {name: one for name, one in self.engines.items() if name in there}
        column: Column = {}
        for run in frame.runs:
            before = column.get(run.row)
            if before is None or before.sequence != run.sequence or _NOTABLE[run.work] > _NOTABLE[before.work]:
                column[run.row] = Cell(run.sequence, run.work)
        self.columns.append(column)

    def _add_of_one(self, frame: Frame) -> None:
        self.preempted += len(frame.preempted)
        self.ended += len(frame.ended)
        engine = self.engines.get(frame.engine)
        if engine is not None and not self.paused:
            engine.add(frame)
