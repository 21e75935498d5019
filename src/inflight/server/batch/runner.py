"""The runner: takes jobs through their life.

Knows deadlines, what a crash left behind and what a fault does to a job; which line is under way, `LineRunner` knows,
how much is read, `ReadAhead`, and what a job leaves, `Ending`. What is not in the store has not happened: an answer
counts when it is durable, and after a restart exactly the lines without one are run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from inflight.server.batch.active_jobs import ActiveJob, ReadAhead
from inflight.server.batch.begun_lines import BegunLines
from inflight.server.batch.clock import KEEP_SECONDS, StoreClock
from inflight.server.batch.ending import Ending, line_fault
from inflight.server.batch.files import Files
from inflight.server.batch.line_runner import LineRunner
from inflight.server.batch.lines import BadLine, BatchLine
from inflight.server.batch.persistence import InputGone, Persistence
from inflight.server.batch.records import ENDED, Job
from inflight.server.batch.retry_policy import RetryPolicy
from inflight.server.batch.source import JobInput, job_input
from inflight.server.batch.store import Store
from inflight.server.metrics.batch import BatchCounts

log = logging.getLogger(__name__)


class Runner:
    def __init__(
        self,
        store: Store,
        files: Files,
        storage: Persistence,
        retry_policy: RetryPolicy,
        begun: BegunLines,
        clock: StoreClock,
        *,
        concurrency: int,
        most_lines: int = 50_000,
        longest_line: int = 1 << 23,
        now: Callable[[], float] = time.time,
    ):
        """begun: marks of the lines in flight, which `retry_policy` writes. clock: windows are measured by it.
        concurrency: lines in flight at once, of all jobs. most_lines: of a job. longest_line: bytes. now: seconds of
        the wall clock."""
        self._store, self._files, self._storage, self._begun = store, files, storage, begun
        self._ending_of = Ending(store, files, storage, self._input, now)
        self._most_lines, self._longest_line = most_lines, longest_line
        self._clock, self._now = clock, now
        self._time_kept = clock.now()
        self._jobs: dict[str, ActiveJob] = {}
        self._read_ahead = ReadAhead()
        self._lines = LineRunner(store, storage, retry_policy, clock, self._read_ahead, concurrency)
        self._changed = storage.changed
        self._reload = True
        self._main: asyncio.Task[None] | None = None

    def start(self, counts: BatchCounts | None = None) -> None:
        """Take up the jobs that have not ended. Within an event loop. counts: told of what becomes of them."""
        self._lines.counts = counts or self._lines.counts
        self._main = asyncio.create_task(self._run(), name="inflight-batch-runner")
        self._main.add_done_callback(_tell_fault)

    async def stop(self) -> None:
        """Lines under way are abandoned; they are run again after the next start."""
        tasks = [task for active in self._jobs.values() for task in (*active.under_way, active.chore) if task]
        tasks += [self._main] if self._main is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._jobs.clear()
        self._read_ahead.reading.clear()

    def notice(self) -> None:
        """A job was created or cancelled."""
        self._reload = True
        self._changed.set()

    # -- the round ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            if self._reload:
                self._reload = False
                await self._take_up()
            self._lines.launch(self._jobs.values())
            for active in list(self._jobs.values()):  # after it, since what it took is to be read anew
                self._attend(active)
            self._lines.counts.jobs(Counter(active.job.status for active in self._jobs.values()))
            await self._keep_time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._sleep_seconds()):
                    await self._changed.wait()

    async def _take_up(self) -> None:
        unended = await self._storage.durably(self._store.unended)
        for job in unended:
            self._jobs.setdefault(job.id, ActiveJob(job)).job = job
        self._begun.forget_others({job.id for job in unended})

    def _sleep_seconds(self) -> float | None:
        if not self._jobs:
            return None
        left = [active.job.due - self._clock.now() for active in self._jobs.values()]
        # Overdue ones are seen to already.
        return min([KEEP_SECONDS, *(seconds for seconds in left if seconds > 0)])

    async def _keep_time(self) -> None:
        """So that a boot of the machine costs the jobs no more of their windows than this."""
        if self._jobs and self._clock.now() - self._time_kept >= KEEP_SECONDS:
            self._time_kept = self._clock.now()
            with contextlib.suppress(OSError):  # the next time, then
                await self._store.keep_time(self._clock.to_keep())

    def _attend(self, active: ActiveJob) -> None:
        """Start what is to be done to the job itself, if anything is."""
        if active.given_up:
            return
        if active.ending(self._clock.now()) is not None:
            for task in list(active.answering.values()):
                task.cancel()
        if active.chore is None and (chore := self._chore(active)) is not None:
            active.chore = asyncio.create_task(chore)
            active.chore.add_done_callback(partial(self._chore_done, active, active.broken is not None))

    def _chore(self, active: ActiveJob) -> Coroutine[Any, Any, None] | None:
        status, source = active.job.status, active.source
        ending = active.ending(self._clock.now())
        if ending is not None:
            return None if active.under_way else self._end(active, ending)
        if status == "validating":
            return self._validate(active)
        if status == "in_progress" and source is None:
            return self._open(active) if self._read_ahead.may_open(active) else None
        if source is not None and not source.ended:
            return self._read(active, source) if self._read_ahead.may_read(active) else None
        return None if active.lines or active.under_way else self._complete(active)

    def _chore_done(self, active: ActiveJob, ending: bool, chore: asyncio.Task[None]) -> None:
        """ending: it was the end of a job that was broken already."""
        active.chore = None
        error = None if chore.cancelled() else chore.exception()
        if isinstance(error, InputGone):
            active.broken = {"code": "input_file_missing", "message": str(error)}
        elif error is not None:
            log.error("batch job %s met a fault", active.job.id, exc_info=error)
            active.given_up = ending
            active.break_by(error)
        if active.job.status in ENDED:
            self._jobs.pop(active.job.id, None)
        self._changed.set()

    # -- chores: each can be broken off anywhere and done again ----------------------------------------------------

    async def _validate(self, active: ActiveJob) -> None:
        job = active.job
        total = await (await self._input(job)).count(self._most_lines)
        if total == 0:
            message = "The input file holds no line; give one request a line."
            active.broken = {"code": "empty_file", "message": message}
        elif total > self._most_lines:
            message = f"The input file has more than {self._most_lines} lines, the most that a job may have; split it."
            active.broken = {"code": "too_many_lines", "message": message}
        else:
            stamps = {"in_progress_at": job.stamp(self._now()), "total": total}
            active.job = await self._storage.durably(partial(self._store.move, job, "in_progress", **stamps))

    async def _open(self, active: ActiveJob) -> None:
        active.answered = await self._storage.durably(partial(self._store.answered, active.job))
        active.source = await self._input(active.job)

    async def _input(self, job: Job) -> JobInput:
        """Raises InputGone."""
        return await job_input(job, self._store, self._files, self._storage, self._longest_line)

    async def _read(self, active: ActiveJob, source: JobInput) -> None:
        page: list[BatchLine | BadLine] | None = None
        try:
            with contextlib.suppress(OSError):
                page = await source.page(active.answered)
        finally:
            self._read_ahead.read()
        if page is None:  # the others read on meanwhile
            self._changed.set()
            await self._storage.wait()
            return
        bad = [line_fault(active.job, line) for line in page if isinstance(line, BadLine)]
        if bad:
            await self._storage.durably(partial(self._store.keep, bad))
            self._lines.counts.lines("failed", len(bad))
        if source.ended:
            self._read_ahead.close(active)
        self._read_ahead.hold(active, [line for line in page if isinstance(line, BatchLine)])

    async def _complete(self, active: ActiveJob) -> None:
        job = active.job
        if job.status == "in_progress":
            stamp = job.stamp(self._now())
            active.job = job = await self._storage.durably(
                partial(self._store.move, job, "finalizing", finalizing_at=stamp)
            )
        if job.status == "finalizing":  # and not cancelled in the last moment
            await self._end(active, "completed")

    async def _end(self, active: ActiveJob, status: str) -> None:
        active.source = None
        self._read_ahead.close(active)
        ahead, active.lines = active.lines, deque()
        self._read_ahead.drop(ahead)
        active.job = await self._ending_of.end(active.job, status, active.broken, ahead)
        if active.job.status == status:
            self._lines.counts.ended(status)


def _tell_fault(main: asyncio.Task[None]) -> None:
    if not main.cancelled() and (error := main.exception()) is not None:
        log.critical("batch jobs have stopped by a fault; restart the server", exc_info=error)
