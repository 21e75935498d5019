"""The runner: takes jobs through their life and keeps a bounded number of their lines under way.

Knows whose turn it is, deadlines, what a crash left behind and what a fault does to a job; how a line comes to its
answer, `RetryPolicy` knows, and what a job leaves, `Ending`. What is not in the store has not happened: an answer
counts when it is durable, and after a restart exactly the lines without one are run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from inflight.server.batch.answering import Answerer
from inflight.server.batch.clock import KEEP_SECONDS, StoreClock
from inflight.server.batch.ending import Ending, line_fault
from inflight.server.batch.files import Files
from inflight.server.batch.lines import BadLine, BatchLine
from inflight.server.batch.persistence import InputGone, Persistence
from inflight.server.batch.records import ENDED, Job
from inflight.server.batch.retry_policy import RetryPolicy
from inflight.server.batch.source import PAGE_LINES, JobInput, job_input
from inflight.server.batch.store import Store
from inflight.server.metrics.batch import BatchCounts
from inflight.server.tenants import Tenant

MOST_READING = 16  # jobs whose input is being read: of each line read a digest is held, which makes some MiB a job
HELD_BYTES = 16 << 20  # of bodies in memory, read ahead or under way, of all jobs; above it nothing more is read
_UNKEPT = ("server_error", "The line was answered, but the server cannot keep the answer; its log has the details.")

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Active:
    """A job that has not ended, and what is held of it in memory."""

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


class Runner:
    def __init__(
        self,
        store: Store,
        files: Files,
        storage: Persistence,
        answerer: Answerer,
        tenant_of: Callable[[str], Tenant],
        clock: StoreClock,
        *,
        concurrency: int,
        most_lines: int = 50_000,
        longest_line: int = 1 << 23,
        now: Callable[[], float] = time.time,
    ):
        """tenant_of: the tenant of that name, as it is today. clock: windows are measured by it. concurrency: lines
        under way at once, of all jobs. most_lines: of a job. longest_line: bytes. now: seconds of the wall clock."""
        self._store, self._files, self._storage = store, files, storage
        self._retry_policy = RetryPolicy(answerer, tenant_of)
        self._ending_of = Ending(store, files, storage, self._input, now)
        self._concurrency, self._most_lines, self._longest_line = concurrency, most_lines, longest_line
        self._clock, self._now = clock, now
        self._time_kept = clock.now()
        self._jobs: dict[str, _Active] = {}
        self._turn = 0
        self._held_bytes = 0  # of lines that are read and not served
        self._reading: set[_Active] = set()  # from their first line to their last
        self._readers = 0  # one at a time: what a page brings is not known before
        self._counts = BatchCounts()
        self._changed = storage.changed
        self._reload = True
        self._main: asyncio.Task[None] | None = None

    @property
    def under_way(self) -> int:
        """Lines."""
        return sum(len(active.under_way) for active in self._jobs.values())

    def start(self, counts: BatchCounts | None = None) -> None:
        """Take up the jobs that have not ended. Within an event loop. counts: told of what becomes of them."""
        self._counts = counts or self._counts
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
        self._reading.clear()

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
            self._launch()
            for active in list(self._jobs.values()):  # after it, since what it took is to be read anew
                self._attend(active)
            self._counts.jobs(Counter(active.job.status for active in self._jobs.values()))
            await self._keep_time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._sleep_seconds()):
                    await self._changed.wait()

    async def _take_up(self) -> None:
        for job in await self._storage.durably(self._store.unended):
            self._jobs.setdefault(job.id, _Active(job)).job = job

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

    def _attend(self, active: _Active) -> None:
        """Start what is to be done to the job itself, if anything is."""
        if active.given_up:
            return
        if self._ending(active) is not None:
            for task in list(active.answering.values()):
                task.cancel()
        if active.chore is None and (chore := self._chore(active)) is not None:
            active.chore = asyncio.create_task(chore)
            active.chore.add_done_callback(partial(self._chore_done, active, active.broken is not None))

    def _chore(self, active: _Active) -> Coroutine[Any, Any, None] | None:
        status, source = active.job.status, active.source
        ending = self._ending(active)
        if ending is not None:
            return None if active.under_way else self._end(active, ending)
        if status == "validating":
            return self._validate(active)
        if status == "in_progress" and source is None:
            return self._open(active) if self._may_open(active) else None
        if source is not None and not source.ended:
            return self._read(active, source) if self._may_read(active) else None
        return None if active.lines or active.under_way else self._complete(active)

    def _may_open(self, active: _Active) -> bool:
        """The others wait; but for one job of each tenant, so that nobody waits for the jobs of another."""
        if len(self._reading) < MOST_READING or all(one.job.tenant != active.job.tenant for one in self._reading):
            self._reading.add(active)
        return active in self._reading

    def _has_read(self, active: _Active) -> None:
        self._reading.discard(active)
        active.answered = set()

    def _may_read(self, active: _Active) -> bool:
        if self._readers or self._held_bytes >= HELD_BYTES or len(active.lines) >= PAGE_LINES // 2:
            return False
        self._readers += 1
        return True

    def _ending(self, active: _Active) -> str | None:
        """The status that the job is about to end with, where that is not by its last answer."""
        status = active.job.status
        if status == "cancelling":
            return "cancelled"
        if active.broken is not None:
            return "failed"
        overdue = status in ("validating", "in_progress") and self._clock.now() >= active.job.due
        return "expired" if overdue else None

    def _chore_done(self, active: _Active, ending: bool, chore: asyncio.Task[None]) -> None:
        """ending: it was the end of a job that was broken already."""
        active.chore = None
        error = None if chore.cancelled() else chore.exception()
        if isinstance(error, InputGone):
            active.broken = {"code": "input_file_missing", "message": str(error)}
        elif error is not None:
            log.error("batch job %s met a fault", active.job.id, exc_info=error)
            active.given_up = ending
            _break(active, error)
        if active.job.status in ENDED:
            self._jobs.pop(active.job.id, None)
        self._changed.set()

    def _launch(self) -> None:
        """Lines in turn: of the tenant that has waited longest, the job that has waited longest."""
        while self.under_way < self._concurrency and self._storage.paused is None:
            ready = [active for active in self._jobs.values() if active.lines and self._ending(active) is None]
            if not ready:
                return
            last: dict[str, int] = {}
            for active in self._jobs.values():
                last[active.job.tenant] = max(last.get(active.job.tenant, 0), active.turn)
            chosen = min(ready, key=lambda active: (last[active.job.tenant], active.turn, active.job.number))
            self._turn += 1
            chosen.turn = self._turn
            self._start(chosen, chosen.lines.popleft())

    # -- one line -----------------------------------------------------------------------------------------------

    def _start(self, active: _Active, line: BatchLine) -> None:
        task = asyncio.create_task(self._serve(active, line))
        active.answering[line.number] = task
        active.under_way.add(task)
        task.add_done_callback(partial(self._served, active, line))

    async def _serve(self, active: _Active, line: BatchLine) -> None:
        answer = await self._retry_policy.answer(active.job, line)
        # From here on nothing but the end of the process keeps the answer from being kept.
        del active.answering[line.number]
        try:
            await self._storage.durably(partial(self._store.keep, [answer]))
        except Exception:  # a bug; to run the line again would meet it again
            log.exception("line %d of batch job %s has an answer that cannot be kept", line.number, active.job.id)
            answer = line_fault(active.job, BadLine(line.number, *_UNKEPT, line.custom_id))
            await self._storage.durably(partial(self._store.keep, [answer]))
        self._counts.lines("completed" if answer.status == 200 else "failed")

    def _served(self, active: _Active, line: BatchLine, task: asyncio.Task[None]) -> None:
        active.answering.pop(line.number, None)
        active.under_way.discard(task)
        if task.cancelled():
            active.lines.appendleft(line)
            self._changed.set()
            return
        self._held_bytes -= len(line.body)
        if (error := task.exception()) is not None:  # not even that it has no answer can be kept
            log.error("line %d of batch job %s met a fault", line.number, active.job.id, exc_info=error)
            _break(active, error)
        self._changed.set()

    # -- chores: each can be broken off anywhere and done again ----------------------------------------------------

    async def _validate(self, active: _Active) -> None:
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

    async def _open(self, active: _Active) -> None:
        active.answered = await self._storage.durably(partial(self._store.answered, active.job))
        active.source = await self._input(active.job)

    async def _input(self, job: Job) -> JobInput:
        """Raises InputGone."""
        return await job_input(job, self._store, self._files, self._storage, self._longest_line)

    async def _read(self, active: _Active, source: JobInput) -> None:
        page: list[BatchLine | BadLine] | None = None
        try:
            with contextlib.suppress(OSError):
                page = await source.page(active.answered)
        finally:
            self._readers -= 1
        if page is None:  # the others read on meanwhile
            self._changed.set()
            await self._storage.wait()
            return
        bad = [line_fault(active.job, line) for line in page if isinstance(line, BadLine)]
        if bad:
            await self._storage.durably(partial(self._store.keep, bad))
            self._counts.lines("failed", len(bad))
        if source.ended:
            self._has_read(active)
        lines = [line for line in page if isinstance(line, BatchLine)]
        self._held_bytes += sum(len(line.body) for line in lines)
        active.lines.extend(lines)

    async def _complete(self, active: _Active) -> None:
        job = active.job
        if job.status == "in_progress":
            stamp = job.stamp(self._now())
            active.job = job = await self._storage.durably(
                partial(self._store.move, job, "finalizing", finalizing_at=stamp)
            )
        if job.status == "finalizing":  # and not cancelled in the last moment
            await self._end(active, "completed")

    async def _end(self, active: _Active, status: str) -> None:
        active.source = None
        self._has_read(active)
        ahead, active.lines = active.lines, deque()
        self._held_bytes -= sum(len(line.body) for line in ahead)
        active.job = await self._ending_of.end(active.job, status, active.broken, ahead)
        if active.job.status == status:
            self._counts.ended(status)


def _tell_fault(main: asyncio.Task[None]) -> None:
    if not main.cancelled() and (error := main.exception()) is not None:
        log.critical("batch jobs have stopped by a fault; restart the server", exc_info=error)


def _break(active: _Active, error: BaseException) -> None:
    """The job is to end by a fault that is not its own; the first one is told."""
    if active.broken is None:
        active.broken = {"code": "server_error", "message": f"The job met a fault of the server: {error!r}."}
