"""A job that has not ended, and what is held of it in memory. Knows what ends it; not who does what about it."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from inflight.server.batch.lines import BatchLine
from inflight.server.batch.records import Job
from inflight.server.batch.source import JobInput


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
