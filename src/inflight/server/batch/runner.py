"""The runner: takes jobs through their life and keeps a bounded number of their lines under way.

Knows whose turn it is, deadlines, what a crash left behind and what a fault does to a job; how a line comes to its
answer, `Tries` knows. What is not in the store has not happened: an answer counts when it is durable, and after a
restart exactly the lines without one are run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from inflight.server.batch.answering import Answerer
from inflight.server.batch.clock import KEEP_SECONDS, StoreClock
from inflight.server.batch.files import Files, no_content, other_length
from inflight.server.batch.input_file import InputFile, count_lines
from inflight.server.batch.lines import BadLine, BatchLine, error_of
from inflight.server.batch.output_files import abandon, assemble
from inflight.server.batch.persistence import InputGone, Persistence
from inflight.server.batch.records import ENDED, Job, LineAnswer, StoredFile
from inflight.server.batch.store import Missing, Store
from inflight.server.batch.tries import Tries
from inflight.server.metrics.batch import BatchCounts
from inflight.server.tenants import Tenant

T = TypeVar("T")

PAGE_LINES = 64  # read ahead of each job
_WHY_UNANSWERED = {
    "expired": ("batch_expired", "The line was not answered before the completion window ended."),
    "cancelled": ("batch_cancelled", "The line was not answered before the job was cancelled."),
}
_WHY_FAILED = "The line was not answered before the job failed; `errors` of the job says why."
_UNKEPT = ("server_error", "The line was answered, but the server cannot keep the answer; its log has the details.")

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Active:
    """A job that has not ended, and what is held of it in memory."""

    job: Job
    file: StoredFile | None = None  # the input
    source: InputFile | None = None
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
        longest_line: int = 1 << 24,
        now: Callable[[], float] = time.time,
    ):
        """tenant_of: the tenant of that name, as it is today. clock: windows are measured by it. concurrency: lines
        under way at once, of all jobs. most_lines: of a job. longest_line: bytes. now: seconds of the wall clock."""
        self._store, self._files, self._storage = store, files, storage
        self._tries = Tries(answerer, tenant_of)
        self._concurrency, self._most_lines, self._longest_line = concurrency, most_lines, longest_line
        self._clock, self._now = clock, now
        self._time_kept = clock.now()
        self._jobs: dict[str, _Active] = {}
        self._turn = 0
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
            return self._open(active)
        if source is not None and not source.ended:
            return self._read(active, source) if len(active.lines) < PAGE_LINES // 2 else None
        return None if active.lines or active.under_way else self._complete(active)

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
        if not chore.cancelled() and (error := chore.exception()) is not None:
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
        answer = await self._tries.answer(active.job, line)
        # From here on nothing but the end of the process keeps the answer from being kept.
        del active.answering[line.number]
        try:
            await self._storage.durably(partial(self._store.keep, [answer]))
        except Exception:  # a bug; to run the line again would meet it again
            log.exception("line %d of batch job %s has an answer that cannot be kept", line.number, active.job.id)
            answer = _line_fault(active.job, BadLine(line.number, *_UNKEPT, line.custom_id))
            await self._storage.durably(partial(self._store.keep, [answer]))
        self._counts.lines("completed" if answer.status == 200 else "failed")

    def _served(self, active: _Active, line: BatchLine, task: asyncio.Task[None]) -> None:
        active.answering.pop(line.number, None)
        active.under_way.discard(task)
        if task.cancelled():
            active.lines.appendleft(line)
        elif (error := task.exception()) is not None:  # not even that it has no answer can be kept
            log.error("line %d of batch job %s met a fault", line.number, active.job.id, exc_info=error)
            _break(active, error)
        self._changed.set()

    # -- chores: each can be broken off anywhere and done again ----------------------------------------------------

    async def _validate(self, active: _Active) -> None:
        job = active.job
        try:
            path = await self._input(active)
            total = await self._reading(active, count_lines, path, self._longest_line)
        except InputGone as gone:
            active.broken = {"code": "input_file_missing", "message": str(gone)}
            return
        if total == 0:
            message = "The input file holds no line; give one request a line."
            active.broken = {"code": "empty_file", "message": message}
        elif total > self._most_lines:
            message = f"The input file has {total} lines, but a job may have {self._most_lines}; split it."
            active.broken = {"code": "too_many_lines", "message": message}
        else:
            stamps = {"in_progress_at": job.stamp(self._now()), "total": total}
            active.job = await self._storage.durably(partial(self._store.move, job, "in_progress", **stamps))

    async def _open(self, active: _Active) -> None:
        active.answered = await self._storage.durably(partial(self._store.answered, active.job))
        active.source = self._source(active.job, await self._input(active))

    async def _input(self, active: _Active) -> Path:
        """Where it lies. Raises InputGone where the store does not know it."""
        job = active.job
        if active.file is None:
            try:
                active.file = await self._storage.durably(partial(self._store.file, job.input_file_id, job.tenant))
            except Missing:
                raise InputGone(f"The input file {job.input_file_id} is not known; upload it again.") from None
        return self._files.path(job.input_file_id)

    def _source(self, job: Job, path: Path) -> InputFile:
        return InputFile(path, job.endpoint, self._longest_line)

    async def _reading(self, active: _Active, read: Callable[..., T], *arguments: Any) -> T:
        """Raises InputGone where the content is not what was stored."""

        async def checked() -> T:
            return await asyncio.to_thread(_checked_reading, active.file, self._files, read, *arguments)

        return await self._storage.durably(checked)

    async def _read(self, active: _Active, source: InputFile) -> None:
        try:
            page = await self._reading(active, source.page, PAGE_LINES, active.answered)
        except InputGone as gone:
            active.broken = {"code": "input_file_missing", "message": str(gone)}
            return
        bad = [_line_fault(active.job, line) for line in page if isinstance(line, BadLine)]
        if bad:
            await self._storage.durably(partial(self._store.keep, bad))
            self._counts.lines("failed", len(bad))
        active.lines.extend(line for line in page if isinstance(line, BatchLine))

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
        job = active.job
        errors = [active.broken] if active.broken is not None else []
        if job.in_progress_at is not None:
            await self._answer_rest(active, status)
            left = job.total - len(await self._storage.durably(partial(self._store.answered, job)))
            if left > 0:
                message = (
                    f"{left} of {job.total} lines could not be read any more, and stand in no file; send them again."
                )
                errors.append({"code": "lines_lost", "message": message})
        outputs = await self._storage.durably(partial(assemble, job, self._store, self._files))
        values: dict[str, Any] = {f"{status}_at": job.stamp(self._now())}
        values["output_file_id"] = outputs.output.id if outputs.output is not None else None
        values["error_file_id"] = outputs.errors.id if outputs.errors is not None else None
        if errors:
            values["errors"] = [{"param": None, "line": None, **error} for error in errors]
        try:
            active.job = await self._storage.durably(partial(self._store.end, job, status, outputs.files, **values))
        except Exception:
            await abandon(outputs.drafts, self._files)
            raise
        if active.job.status == status:
            await self._files.publish(outputs.drafts)
            self._counts.ended(status)
        else:  # moved by somebody else in the meantime
            await abandon(outputs.drafts, self._files)

    async def _answer_rest(self, active: _Active, status: str) -> None:
        """An answer for every line that has none, so that each line stands in one of the job's files, as far as the
        input can be read."""
        if status == "completed":
            return
        broken = active.broken or {}
        code, message = _WHY_UNANSWERED.get(status) or (broken.get("code", "server_error"), _WHY_FAILED)
        ahead, active.lines = active.lines, deque()
        unanswered = [BadLine(line.number, code, message, line.custom_id) for line in ahead]
        await self._keep_each(active, [_line_fault(active.job, line) for line in unanswered])
        try:
            await self._mark_unanswered(active, code, message)
        except InputGone:
            pass  # how many lines that leaves out, the job's errors say
        except Exception as error:  # what made the job fail may be in its file
            log.error("lines of batch job %s cannot be read", active.job.id, exc_info=error)

    async def _mark_unanswered(self, active: _Active, code: str, message: str) -> None:
        """Of what is there of the input, whether or not it is what was stored."""
        job = active.job
        answered = await self._storage.durably(partial(self._store.answered, job))
        source, left = self._source(job, await self._input(active)), job.total - len(answered)
        while not source.ended and left > 0:
            page = await self._storage.durably(partial(_unchecked_reading, source.page, PAGE_LINES, answered))
            bad = [
                line if isinstance(line, BadLine) else BadLine(line.number, code, message, line.custom_id)
                for line in page[:left]
            ]
            await self._keep_each(active, [_line_fault(job, line) for line in bad])
            left -= len(bad)

    async def _keep_each(self, active: _Active, faults: list[LineAnswer]) -> None:
        """One that cannot be kept takes no other with it."""
        keeping = (self._storage.durably(partial(self._store.keep, [one])) for one in faults)
        failures = [one for one in await asyncio.gather(*keeping, return_exceptions=True) if one is not None]
        if failures:
            told = "%d lines of batch job %s cannot be kept"
            log.error(told, len(failures), active.job.id, exc_info=failures[0])


def _tell_fault(main: asyncio.Task[None]) -> None:
    if not main.cancelled() and (error := main.exception()) is not None:
        log.critical("batch jobs have stopped by a fault; restart the server", exc_info=error)


def _break(active: _Active, error: BaseException) -> None:
    """The job is to end by a fault that is not its own; the first one is told."""
    if active.broken is None:
        active.broken = {"code": "server_error", "message": f"The job met a fault of the server: {error!r}."}


def _checked_reading(file: StoredFile | None, files: Files, read: Callable[..., T], *arguments: Any) -> T:
    try:
        if file is not None and (there := files.path(file.id).stat().st_size) != file.bytes:
            raise InputGone(f"{other_length(file, there)}; upload it again.")
        return read(*arguments)
    except FileNotFoundError:
        told = "The content of the input file is gone" if file is None else no_content(file)
        raise InputGone(f"{told}; upload it again.") from None


async def _unchecked_reading(read: Callable[..., T], *arguments: Any) -> T:
    try:
        return await asyncio.to_thread(read, *arguments)
    except FileNotFoundError:
        raise InputGone("The content of the input file is gone.") from None


def _line_fault(job: Job, bad: BadLine) -> LineAnswer:
    payload = json.dumps(error_of(bad.code, str(bad), bad.number))
    return LineAnswer(job=job.number, line=bad.number, custom_id=bad.custom_id, status=None, payload=payload)
