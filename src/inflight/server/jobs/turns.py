"""Bounds on what jobs hold in memory, shared fairly among tenants and their jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from inflight.server.jobs.store import Job

MAX_READING = 16  # jobs whose input is being read: of each line a digest is held, some MiB for each job
MAX_LINE_BYTES = 16 << 20  # of bodies in flight, of all jobs; one alone may have more


class Reading:
    """Bounds the jobs whose input is being read; but one of each tenant always is, so that none waits for another's."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def of(self, job: Job) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: self._has_room(job))
            self.jobs.append(job)
        try:
            yield
        finally:
            self.jobs.remove(job)
            async with self._changed:
                self._changed.notify_all()

    def _has_room(self, job: Job) -> bool:
        return len(self.jobs) < MAX_READING or all(one.tenant != job.tenant for one in self.jobs)


class Turns:
    """Bounds the lines in flight; the next is of the tenant that has waited longest, and there of the job that has."""

    def __init__(self, slots: int):
        self.free, self.nbytes = slots, 0
        self._waiting: dict[int, tuple[Job, int, asyncio.Future[None]]] = {}
        self._count = 0
        self._last: dict[str | int, int] = {}  # turns, by tenant and by the number of the job

    async def take(self, job: Job, nbytes: int) -> None:
        """Wait for a turn. nbytes: of the line; `leave` it with the same."""
        granted = asyncio.get_running_loop().create_future()
        self._waiting[job.number] = (job, nbytes, granted)
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if self._waiting.pop(job.number, None) is None:
                self.leave(nbytes)
            raise

    def leave(self, nbytes: int) -> None:
        self.free += 1
        self.nbytes -= nbytes
        self._grant()

    def forget(self, job: Job) -> None:
        self._last.pop(job.number, None)

    def _grant(self) -> None:
        while self.free and self._waiting:
            last = self._last.get
            waiting = self._waiting.values()
            job, nbytes, granted = min(
                waiting, key=lambda one: (last(one[0].tenant, 0), last(one[0].number, 0), one[0].number)
            )
            if self.nbytes and self.nbytes + nbytes > MAX_LINE_BYTES:
                return
            del self._waiting[job.number]
            self._count += 1
            self._last[job.tenant] = self._last[job.number] = self._count
            self.free -= 1
            self.nbytes += nbytes
            granted.set_result(None)
