"""Jobs that have not ended: what is held of each in memory, and how much may be held of all.

Knows what ends a job, whose input is open, and bytes of lines that are read; not who does what about it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from inflight.server.batch.lines import BatchLine
from inflight.server.batch.records import Job
from inflight.server.batch.source import PAGE_LINES, JobInput

MOST_READING = 16  # jobs whose input is being read: of each line read a digest is held, which makes some MiB a job
HELD_BYTES = 16 << 20  # of bodies in memory, read ahead or under way, of all jobs; above it nothing more is read


@dataclass(slots=True, eq=False)
class ActiveJob:
    job: Job
    source: JobInput | None = None
    answered: set[int] = field(default_factory=set)  # before this process took it up
    lines: deque[BatchLine] = field(default_factory=deque)  # read, and not under way
    answering: dict[int, asyncio.Task[None]] = field(default_factory=dict)  # by line; may still be cancelled
    under_way: set[asyncio.Task[None]] = field(default_factory=set)  # those, and those that are being kept
    chore: asyncio.Task[None] | None = None  # the one thing that is done to the job itself
    turn: int = 0  # when it last had one
    broken: dict[str, Any] | None = None  # the error that ends it
    given_up: bool = False  # not even that end goes well; the next start of the server tries again

    def ending(self, now: float) -> str | None:
        """The status that the job is about to end with, where that is not by its last answer. now: store's clock."""
        if self.job.status == "cancelling":
            return "cancelled"
        if self.broken is not None:
            return "failed"
        overdue = self.job.status in ("validating", "in_progress") and now >= self.job.due
        return "expired" if overdue else None

    def break_by(self, error: BaseException) -> None:
        """The job is to end by a fault that is not its own; the first one is told."""
        if self.broken is None:
            self.broken = {"code": "server_error", "message": f"The job met a fault of the server: {error!r}."}


class ReadAhead:
    """How much of all jobs' inputs is read before it is served."""

    def __init__(self) -> None:
        self.reading: set[ActiveJob] = set()  # from their first line to their last
        self.held_bytes = 0  # of lines that are read and not served
        self._is_busy = False  # one reads at a time: what a page brings is not known before

    def may_open(self, active: ActiveJob) -> bool:
        """The others wait; but for one job of each tenant, so that nobody waits for the jobs of another."""
        if len(self.reading) < MOST_READING or all(one.job.tenant != active.job.tenant for one in self.reading):
            self.reading.add(active)
        return active in self.reading

    def may_read(self, active: ActiveJob) -> bool:
        """Whoever may, says so when the page is `read`."""
        if self._is_busy or self.held_bytes >= HELD_BYTES or len(active.lines) >= PAGE_LINES // 2:
            return False
        self._is_busy = True
        return True

    def read(self) -> None:
        self._is_busy = False

    def hold(self, active: ActiveJob, lines: Iterable[BatchLine]) -> None:
        for line in lines:
            active.lines.append(line)
            self.held_bytes += len(line.body)

    def drop(self, lines: Iterable[BatchLine]) -> None:
        """They are served, or will not be."""
        self.held_bytes -= sum(len(line.body) for line in lines)

    def close(self, active: ActiveJob) -> None:
        """Its input is read to its end, or will not be."""
        self.reading.discard(active)
        active.answered = set()
