"""Asks lines: bounds how many are in flight, shares them among tenants, and tries each until it has its own answer.

A failed step ends all that is in flight, and so does the death of the engine or the server. Tried again together, the
line that causes it would use up the tries of all others; so suspects are tried alone, with no other line in flight. A
line is marked in the database before it is asked, which is how the next process knows what was in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from inflight.server.asgi import error_body
from inflight.server.errors import ApiError
from inflight.server.jobs.lines import BatchLine, line_id
from inflight.server.jobs.storage import Retries, StorageError
from inflight.server.jobs.store import Job, Jobs, LineAnswer, LineUsage
from inflight.server.tenants import Tenant

MIN_WAIT, USUAL_WAIT, MAX_WAIT = 0.05, 1.0, 60.0  # seconds between two tries
MAX_FAILED_STEPS = 3  # of one line, in one life of the worker; the last one is the line's answer
MAX_UNCLEAN_ENDS = 3  # of the server or the engine while the line was in flight; then it is not tried again
MAX_READING = 16  # jobs whose input is being read: of each line a digest is held, some MiB for each job
MAX_LINE_BYTES = 16 << 20  # of bodies in flight, of all jobs; one alone may have more

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """status: HTTP status of the endpoint. body: its answer, JSON. usage: of a line that was served."""

    status: int
    body: bytes
    usage: LineUsage | None = None


class NotNow(Exception):
    """No answer to the line, and not by its fault: the engine is full, loading, ending or broken. It is tried again.

    retry_after: seconds after which that makes sense; None: unknown.
    """

    def __init__(self, why: str, retry_after: float | None = None):
        super().__init__(why)
        self.retry_after = retry_after


class StepFailed(Exception):
    """The step that computed the line failed, by this line or one beside it. answer: the line's, if it is the cause."""

    def __init__(self, answer: ApiError):
        super().__init__(answer.message)
        self.answer = answer


class EngineEnded(Exception):
    """The engine that computed the line crashed, or its process was killed; the text says how."""


InFlight = Callable[[], AbstractAsyncContextManager[None]]


class LineHandler(Protocol):
    async def answer(self, url: str, body: bytes, tenant: Tenant, request_id: str, in_flight: InFlight) -> Answer:
        """Answer one body (JSON) as the endpoint at `url` would, without a stream.

        It enters `in_flight()` once the model is loaded, and leaves it with what computing the line raises. Cancelled,
        it cancels the request.

        Raises:
            ApiError: The endpoint refuses the body, which is the line's answer.
            NotNow, StepFailed, EngineEnded: There is no answer yet.
        """
        ...


class Attempts:
    def __init__(self, handler: LineHandler, tenant_of: Callable[[str], Tenant], jobs: Jobs, retries: Retries):
        """tenant_of: the tenant of that name, with its limits of today."""
        self._handler, self._tenant_of = handler, tenant_of
        self._jobs, self._retries = jobs, retries
        self._gate = _Gate()
        self._ends: dict[tuple[int, int], int] = {}  # unclean ends, by job and line, where there were any

    async def resume(self) -> int:
        """Read what the last worker has left. Return how many lines were in flight when it died."""
        count, self._ends = await self._retries.run(self._jobs.count_unclean_ends)
        return count

    async def answer(self, job: Job, line: BatchLine) -> LineAnswer:
        """Return the line's answer, however long it takes."""
        failed_steps = 0
        while True:
            wait, ends = USUAL_WAIT, self._ends.get((job.number, line.number), 0)
            if ends >= MAX_UNCLEAN_ENDS:
                sentence = "line %d of batch job %s fails: the server crashed %d times while it was in flight"
                log.error(sentence, line.number, job.id, ends)
                return _refused(job, line, _unclean(ends))
            try:
                answer = await self._ask(job, line, alone=failed_steps + ends > 0)
                return _line_answer(job, line, answer.status, answer.body.decode(), answer.usage)
            except NotNow as reason:
                log.debug("line %d of batch job %s waits: %s", line.number, job.id, reason)
                wait = reason.retry_after or USUAL_WAIT
            except EngineEnded as end:
                log.info("line %d of batch job %s was begun when its engine ended: %s", line.number, job.id, end)
            except StepFailed as failure:
                failed_steps += 1
                if failed_steps == MAX_FAILED_STEPS:
                    return _refused(job, line, failure.answer)
            except ApiError as error:
                return _refused(job, line, error)
            except asyncio.CancelledError:  # or one that was not requested, and leaves the line unanswered
                if _is_cancelled():
                    raise
            except (KeyboardInterrupt, SystemExit, GeneratorExit):
                raise
            except BaseException:  # a panic of native code is no Exception, and is this line's alone as well
                log.exception("line %d of batch job %s failed with an internal error", line.number, job.id)
                sentence = "Internal server error while this line was processed; see the server log."
                return _refused(job, line, ApiError(500, sentence, type="server_error"))
            await asyncio.sleep(min(max(wait, MIN_WAIT), MAX_WAIT))

    async def _ask(self, job: Job, line: BatchLine, *, alone: bool) -> Answer:
        tenant, request_id = self._tenant_of(job.tenant), line_id(job.id, line.number)
        in_flight = partial(self._in_flight, (job.number, line.number), alone)
        return await self._handler.answer(line.url, line.body, tenant, request_id, in_flight)

    @asynccontextmanager
    async def _in_flight(self, line: tuple[int, int], alone: bool) -> AsyncIterator[None]:
        async with self._gate.enter(alone=alone):
            has_answer = False
            try:
                await self._retries.run(partial(self._jobs.begin, *line, self._ends.get(line, 0)))
                yield
                has_answer = True  # with which the mark goes
            except StepFailed:
                if alone:  # perhaps the fault is the engine's, and passes: the next suspects must not meet it, too
                    await asyncio.sleep(USUAL_WAIT)
                raise
            except EngineEnded:
                self._ends[line] = self._ends.get(line, 0) + 1
                raise
            finally:
                if not has_answer:
                    with contextlib.suppress(StorageError):  # at worst it counts as one unclean end more
                        await asyncio.shield(self._jobs.leave(*line, self._ends.get(line, 0)))


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


class LineSlots:
    """Bounds the lines in flight; the next is of the tenant that has waited longest, and there of the job that has."""

    def __init__(self, slots: int):
        self.free, self.nbytes = slots, 0
        self._waiting: dict[int, tuple[Job, int, asyncio.Future[None]]] = {}
        self._count = 0
        self._last: dict[str | int, int] = {}  # grants, by tenant and by the number of the job

    async def take(self, job: Job, nbytes: int) -> None:
        """Wait for a slot. nbytes: of the line; `leave` it with the same."""
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


class _Gate:
    """Lets lines in together, or a suspect alone, which comes before those that are not suspects."""

    def __init__(self) -> None:
        self._inside = self._suspects = 0
        self._is_alone = False
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def enter(self, *, alone: bool) -> AsyncIterator[None]:
        """Wait until the line may be asked; it is inside until the end of the context."""
        self._suspects += alone
        try:
            while self._inside if alone else self._is_alone or self._suspects:
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._suspects -= alone
            self._changed.set()
        self._inside += 1
        self._is_alone = alone
        try:
            yield
        finally:
            self._inside -= 1
            self._is_alone = False
            self._changed.set()


def _unclean(ends: int) -> ApiError:
    return ApiError(
        500,
        f"The server or its engine crashed {ends} times while it processed this line, which is not retried; the "
        "server's log may say why.",
        type="server_error",
        code="unclean_ends",
    )


def _is_cancelled() -> bool:
    """Whether it was requested. A function: a task in a frame that its own exception holds would be a cycle."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _refused(job: Job, line: BatchLine, error: ApiError) -> LineAnswer:
    """Return the error as the endpoint of the line answers it."""
    status, body = error_body(error, line.url)
    return _line_answer(job, line, status, json.dumps(body, allow_nan=False))


def _line_answer(job: Job, line: BatchLine, status: int, payload: str, usage: LineUsage | None = None) -> LineAnswer:
    """payload: JSON."""
    return LineAnswer(
        job=job.number, line=line.number, custom_id=line.custom_id, status=status, payload=payload, usage=usage
    )
