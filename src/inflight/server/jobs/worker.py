"""The worker: takes the jobs of all tenants through their lives, in one process of the server.

Each job that has not ended has a task here. What is not in the database has not happened: an answer counts when it is
durable, and the next worker runs exactly the lines without one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from inflight.counted import counted
from inflight.server.jobs.attempts import Attempts, LineSlots, Reading
from inflight.server.jobs.clock import SAVE_SECONDS, StoreClock
from inflight.server.jobs.files import Files
from inflight.server.jobs.folder import WorkerSlot
from inflight.server.jobs.line_files import InputGone, JobInput, Outputs, line_error
from inflight.server.jobs.lines import BadLine, BatchLine
from inflight.server.jobs.storage import Retries, StorageError
from inflight.server.jobs.store import ENDED, Job, Jobs, LineAnswer

MAX_ENDING = 2  # jobs whose input is being read at their end
POLL_SECONDS = 0.5  # between two looks at the clock, and for jobs that other processes create and cancel
_WHY_UNANSWERED = {
    "expired": ("batch_expired", "The line was not answered before the completion window ended."),
    "cancelled": ("batch_cancelled", "The line was not answered before the job was cancelled."),
}
_WHY_FAILED = "The line was not answered before the job failed; `errors` of the job says why."
_NOT_KEPT = ("server_error", "The line was answered, but the server cannot keep the answer; its log has the details.")

log = logging.getLogger(__name__)


class JobCounts:
    """Receives counts of jobs, for metrics; this one drops them."""

    def jobs(self, by_status: Mapping[str, int]) -> None:
        """Replace the numbers of jobs, by status."""

    def ended(self, status: str) -> None:
        """Count a job that has ended."""

    def lines(self, outcome: Literal["completed", "failed"], count: int = 1) -> None:
        """Count answered lines."""


@dataclass(slots=True, eq=False)
class _ActiveJob:
    job: Job
    task: asyncio.Task[None] | None = None
    serving: asyncio.Task[None] | None = None  # its lines, while they may be cancelled
    keeping: set[asyncio.Task[None]] = field(default_factory=set)  # answers on their way into the database
    end: str | None = None  # the status that it is to end with, where that is not by its last answer
    fault: _Failed | None = None


class Worker:
    def __init__(
        self,
        jobs: Jobs,
        files: Files,
        attempts: Attempts,
        retries: Retries,
        clock: StoreClock,
        slot: WorkerSlot,
        *,
        concurrency: int,
        max_lines: int = 50_000,
        max_line: int = 1 << 23,
        now: Callable[[], float] = time.time,
    ):
        """
        Args:
            slot: Whichever process has it is the worker.
            concurrency: Lines in flight at once, of all jobs.
            max_lines: Of a job.
            max_line: Bytes.
            now: Seconds of the wall clock.
        """
        self._jobs, self._files, self._attempts, self._retries = jobs, files, attempts, retries
        self._clock, self._slot, self._now = clock, slot, now
        self._max_lines, self._max_line = max_lines, max_line
        self._slots = LineSlots(concurrency)
        self._reading = Reading()
        self._ending = asyncio.Semaphore(MAX_ENDING)
        self._active: dict[int, _ActiveJob] = {}
        self._changed = asyncio.Event()
        self._saved_at = clock.now()
        self._main: asyncio.Task[None] | None = None
        self._is_slot_logged = False
        self.counts = JobCounts()

    def start(self) -> None:
        """Take up the jobs that have not ended, once no other process does. Within an event loop."""
        self._main = asyncio.create_task(self._run(), name="inflight-jobs")
        self._main.add_done_callback(_log_fault)

    async def stop(self) -> None:
        """Abandon lines in flight, which are run again after the next start. Answers are kept."""
        tasks = [one.task for one in self._active.values() if one.task is not None]
        tasks += [self._main] if self._main is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if keeping := {task for one in self._active.values() for task in one.keeping}:
            _, late = await asyncio.wait(keeping, timeout=1.0)
            for task in late:  # a full disk: their lines are asked again
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._active.clear()
        self._slot.release()

    def notice(self) -> None:
        """Look now: a job was created or cancelled."""
        self._changed.set()

    # -- all jobs ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._take_slot():
            await asyncio.sleep(POLL_SECONDS)
        if count := await self._attempts.resume():
            lines = counted(count, "line of batch jobs was", "lines of batch jobs were")
            log.warning(f"{lines} in flight when the server ended uncleanly: such lines are tried one at a time.")
        version, counted_before = -1, None
        while True:
            is_changed = self._changed.is_set()
            self._changed.clear()
            with contextlib.suppress(StorageError):  # what cannot be read now is read the next time
                before, version = version, await self._jobs.data_version()
                is_changed = is_changed or version != before
            if is_changed:
                for job in await self._retries.run(self._jobs.running):
                    self._take_up(job)
            self._end_overdue()
            if (counts := Counter(one.job.status for one in self._active.values())) != counted_before:
                self.counts.jobs(counts)
                counted_before = counts
            await self._save_time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._changed.wait()

    def _take_slot(self) -> bool:
        """Take the slot, if no other process has it; return whether this one has it."""
        try:
            return self._slot.acquire()
        except OSError as error:  # a full disk
            if not self._is_slot_logged:
                log.error("batch jobs wait, because %s cannot be locked: %s", error.filename, error.strerror)
            self._is_slot_logged = True
            return False

    async def _save_time(self) -> None:
        """Save the clock now and then: what is not saved, a boot of the machine costs jobs of their windows."""
        if self._active and self._clock.now() - self._saved_at >= SAVE_SECONDS:
            self._saved_at = self._clock.now()
            with contextlib.suppress(StorageError):  # the next time, then
                await self._jobs.save_time()

    def _take_up(self, job: Job) -> None:
        active = self._active.get(job.number)
        if active is None:
            active = self._active[job.number] = _ActiveJob(job)
            active.task = asyncio.create_task(self._life(active))
            active.task.add_done_callback(partial(self._finished, active))
        if job.status == "cancelling":
            active.job = job
            self._end_early(active, "cancelled")

    def _end_overdue(self) -> None:
        for active in self._active.values():
            if active.job.status in ("validating", "in_progress") and self._clock.now() >= active.job.due:
                self._end_early(active, "expired")

    def _end_early(self, active: _ActiveJob, status: str) -> None:
        if active.end is None:
            active.end = status
            if active.serving is not None:
                active.serving.cancel()

    def _finished(self, active: _ActiveJob, task: asyncio.Task[None]) -> None:
        """Forget a job that has ended. One whose end has failed stays; the next start of the worker tries it again."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("batch job %s cannot be ended", active.job.id, exc_info=error)
        elif active.job.status in ENDED:
            self._active.pop(active.job.number, None)
            self._slots.forget(active.job)
        self._changed.set()

    # -- one job: every part of it can be broken off anywhere and done again -----------------------------------------

    async def _life(self, active: _ActiveJob) -> None:
        if active.end is None and active.job.status in ("validating", "in_progress"):
            active.serving = serving = asyncio.create_task(self._serve(active))
            try:
                await asyncio.wait([serving])
            finally:
                serving.cancel()
                await asyncio.wait([serving])
                active.serving = None
            if not serving.cancelled() and (error := serving.exception()) is not None:
                self._break(active, error)
        while active.keeping:
            await asyncio.wait(active.keeping)
        try:
            await self._end(active)
        except Exception as error:
            if active.fault is not None:
                raise
            self._break(active, error)
            await self._end(active)

    def _break(self, active: _ActiveJob, error: BaseException) -> None:
        """End the job as failed; the first fault is the one that it reports."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if not isinstance(error, _Failed):
            log.error("batch job %s failed with an internal error", active.job.id, exc_info=error)
            error = _Failed("server_error", f"Internal server error: {error!r}.")
        active.fault = active.fault or error
        if active.serving is not None:
            active.serving.cancel()

    async def _serve(self, active: _ActiveJob) -> None:
        """Answer lines until every line has an answer, or the input cannot be read: those that were read are answered
        first."""
        if active.job.status == "validating":
            await self._validate(active)
        if active.job.status != "in_progress":  # it was cancelled in between
            return
        async with asyncio.TaskGroup() as lines:
            try:
                async with self._reading.of(active.job):
                    await self._answer_all(active, lines)
            except InputGone as gone:
                active.fault = active.fault or _Failed("input_file_missing", str(gone))

    async def _validate(self, active: _ActiveJob) -> None:
        job = active.job
        try:
            total = await (await self._input(job)).count(self._max_lines)
        except InputGone as gone:
            raise _Failed("input_file_missing", str(gone)) from None
        if total == 0:
            raise _Failed("empty_file", "The input file holds no line; give one request a line.")
        if total > self._max_lines:
            sentence = f"The input file has more than {self._max_lines} lines, the most that a job may have; split it."
            raise _Failed("too_many_lines", sentence)
        stamps = {"in_progress_at": job.stamp(self._now()), "total": total}
        active.job = await self._retries.run(partial(self._jobs.move, job, "in_progress", **stamps))

    async def _input(self, job: Job) -> JobInput:
        """Open the input from its first line. Raises InputGone."""
        return await JobInput.of(job, self._jobs, self._files, self._retries, self._max_line)

    async def _answer_all(self, active: _ActiveJob, lines: asyncio.TaskGroup) -> None:
        """Start a task for each line without an answer, as turns come. Raises InputGone."""
        source = await self._input(active.job)
        without = await self._retries.run(partial(self._jobs.answered, active.job))
        while not source.is_at_end:
            page = await source.page(without)
            bad = [line_error(active.job, line) for line in page if isinstance(line, BadLine)]
            if bad:
                await asyncio.wait([self._keep(active, one) for one in bad])
            for line in page:
                if isinstance(line, BadLine):
                    continue
                await self._slots.take(active.job, len(line.body))
                task = lines.create_task(self._attempts.answer(active.job, line))
                task.add_done_callback(partial(self._answered, active, line))

    def _answered(self, active: _ActiveJob, line: BatchLine, task: asyncio.Task[LineAnswer]) -> None:
        """Keep the answer; the turn ends when it is durable, so that a full disk starts no more lines."""
        leave = partial(self._slots.leave, len(line.body))
        if task.cancelled() or task.exception() is not None:
            leave()
        else:
            self._keep(active, task.result()).add_done_callback(lambda _: leave())

    def _keep(self, active: _ActiveJob, answer: LineAnswer) -> asyncio.Task[None]:
        """Keep an answer, whatever becomes of its job meanwhile."""
        task = asyncio.create_task(self._keep_one(active, answer))
        active.keeping.add(task)
        task.add_done_callback(active.keeping.discard)
        return task

    async def _keep_one(self, active: _ActiveJob, answer: LineAnswer) -> None:
        try:
            try:
                await self._retries.run(partial(self._jobs.keep, answer))
            except Exception:  # a bug; to run the line again would meet it again
                log.exception("line %d of batch job %s has an answer that cannot be kept", answer.line, active.job.id)
                answer = line_error(active.job, BadLine(answer.line, *_NOT_KEPT, answer.custom_id))
                await self._retries.run(partial(self._jobs.keep, answer))
        except Exception as error:  # not even that it has no answer can be kept
            return self._break(active, error)
        self.counts.lines("completed" if answer.status == 200 else "failed")

    # -- the end of a job --------------------------------------------------------------------------------------------

    async def _end(self, active: _ActiveJob) -> None:
        """Write its files, and store their rows with its last status. A tenant may cancel it until then."""
        while (job := active.job).status not in ENDED:
            status = active.end or ("completed" if active.fault is None else "failed")
            if job.status == "cancelling":
                status = "cancelled"
            elif status == "completed" and job.status == "in_progress":
                stamp = job.stamp(self._now())
                move = partial(self._jobs.move, job, "finalizing", finalizing_at=stamp)
                active.job = await self._retries.run(move)
                continue
            async with self._ending:
                active.job = await self._end_as(active, status)
            if active.job.status == status:
                self.counts.ended(status)

    async def _end_as(self, active: _ActiveJob, status: str) -> Job:
        """Return the job as it is then: in another status, if a tenant has changed it."""

        async def write() -> Job:
            outputs = Outputs(job, self._files)
            try:
                files, errors = {}, [] if status != "failed" or active.fault is None else [active.fault.error]
                if job.in_progress_at is not None:
                    files = await outputs.write(self._jobs, self._rest(active, status))
                if (left := job.total - outputs.lines) > 0:
                    why = (
                        f"{left} of {job.total} lines could not be read or stored and are in neither file; send them "
                        "again."
                    )
                    errors.append(_Failed("lines_lost", why).error)
                values: dict[str, Any] = {f"{status}_at": job.stamp(self._now())}
                values |= {f"{kind}_file_id": file.id for kind, file in files.items()}
                values |= {"errors": errors} if errors else {}
                ended = await self._jobs.end(job, status, files.values(), outputs.failed, **values)
            except Exception:  # cancelled, the rows may be on their way; if they are not, the next start removes all
                await outputs.abandon()
                raise
            await (outputs.publish() if ended.status == status else outputs.abandon())
            return ended

        job = active.job
        return await self._retries.run(write)

    async def _rest(self, active: _ActiveJob, status: str) -> AsyncIterator[BadLine]:
        """Yield the lines without an answer, as far as the input can be read; the job's errors count the others."""
        fault = "server_error" if active.fault is None else active.fault.code
        code, message = _WHY_UNANSWERED.get(status, (fault, _WHY_FAILED))
        job, without = active.job, await self._jobs.answered(active.job)
        left = 0 if status == "completed" else job.total - len(without)
        try:
            source = await self._input(job) if left > 0 else None
            while source is not None and left > 0 and not source.is_at_end:
                for line in (await source.page(without, checked=False))[:left]:
                    left -= 1
                    if not isinstance(line, BadLine):
                        line = BadLine(line.number, code, message, line.custom_id)
                    yield line
        except InputGone:
            return
        except Exception as error:  # what made the job fail may be in its file
            log.error("lines of batch job %s cannot be read", job.id, exc_info=error)


class _Failed(Exception):
    """Why a job ends as failed. code: a short name for machines."""

    def __init__(self, code: str, sentence: str):
        super().__init__(sentence)
        self.code = code

    @property
    def error(self) -> dict[str, Any]:
        return {"code": self.code, "message": str(self), "param": None, "line": None}


def _log_fault(main: asyncio.Task[None]) -> None:
    if not main.cancelled() and (error := main.exception()) is not None:
        log.critical("batch jobs stopped with an internal error; restart the server", exc_info=error)
