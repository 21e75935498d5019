"""How a line is tried again: it is asked for until it has an answer that is its own.

Knows what is an answer and what is none, how long to wait between tries, and how a line that breaks steps, or ends the
process, is found among those that ran beside it: they are tried again one at a time, with no other line in flight.
Which line is tried when, and where its answer goes, the runner knows.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from inflight.server.batch.answering import Answer, Answerer, EngineEnded, NotNow, StepFailed
from inflight.server.batch.begun_lines import BegunLines
from inflight.server.batch.line_gate import LineGate
from inflight.server.batch.lines import BatchLine, line_id
from inflight.server.batch.persistence import Persistence
from inflight.server.batch.records import Job, LineAnswer, LineUsage
from inflight.server.errors import ApiError
from inflight.server.json import error_body
from inflight.server.tenants import Tenant

SHORTEST_WAIT, USUAL_WAIT, LONGEST_WAIT = 0.05, 1.0, 60.0  # seconds between two tries
MAX_FAILED_STEPS = 3  # of one line, since the server started; the last one is the line's answer
MAX_UNCLEAN_ENDS = 3  # of the server or of the engine while the line was begun, in all; then it is not tried again

log = logging.getLogger(__name__)


class RetryPolicy:
    def __init__(self, answerer: Answerer, tenant_of: Callable[[str], Tenant], storage: Persistence, begun: BegunLines):
        """tenant_of: the tenant of that name, as it is today. storage: waits where a mark cannot be written. begun:
        marks of the lines that are in flight."""
        self._answerer, self._tenant_of, self._storage, self._begun = answerer, tenant_of, storage, begun
        # A failed step ends everything in flight, and so does the end of the process. Tried together again, a line
        # that causes it would use up the tries of all the others; alone, it uses up its own.
        self._gate = LineGate()

    async def answer(self, job: Job, line: BatchLine) -> LineAnswer:
        """However long it takes. Cancelled, the line has no answer."""
        failed_steps = 0
        while True:
            wait, ends = USUAL_WAIT, self._begun.ends(job.id, line.number)
            if ends >= MAX_UNCLEAN_ENDS:
                log.error("line %d of batch job %s was begun at %d unclean ends, and fails", line.number, job.id, ends)
                return _refused(job, line, _crashes(ends))
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
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
            except (KeyboardInterrupt, SystemExit, GeneratorExit):
                raise
            except BaseException:  # a panic of native code is no Exception, and is this line's alone as well
                log.exception("line %d of batch job %s met a fault", line.number, job.id)
                fault = ApiError(500, "The server met a fault while it answered this line.", type="server_error")
                return _refused(job, line, fault)
            await asyncio.sleep(min(max(wait, SHORTEST_WAIT), LONGEST_WAIT))

    async def _ask(self, job: Job, line: BatchLine, *, alone: bool) -> Answer:
        tenant, request_id = self._tenant_of(job.tenant), line_id(job.id, line.number)
        in_flight = partial(self._in_flight, job.id, line.number, alone)
        return await self._answerer.answer(line.url, line.body, tenant, request_id, in_flight)

    @asynccontextmanager
    async def _in_flight(self, job: str, line: int, alone: bool) -> AsyncIterator[None]:
        async with self._gate.enter(alone=alone):
            try:
                await self._storage.durably(partial(self._begun.begin, job, line))
                yield
            except StepFailed:
                if alone:  # perhaps the fault is the engine's, and passes: the next suspects are not to fall to it, too
                    await asyncio.sleep(USUAL_WAIT)
                raise
            except EngineEnded:
                self._begun.crashed(job, line)
                raise
            finally:
                self._begun.end(job, line)


def _crashes(ends: int) -> ApiError:
    return ApiError(
        500,
        f"The line was being answered {ends} times when the server or its engine ended uncleanly (a crash, or a kill "
        "for want of memory), and is not tried again; the server's log may say why.",
        type="server_error",
        code="unclean_ends",
    )


def _is_cancelled() -> bool:
    """Not a panic that looks like it. A function, for a task in a frame that its own exception holds is a cycle."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _refused(job: Job, line: BatchLine, error: ApiError) -> LineAnswer:
    """As the endpoint of the line would tell it."""
    status, body = error_body(error, line.url)
    return _line_answer(job, line, status, json.dumps(body, allow_nan=False))


def _line_answer(job: Job, line: BatchLine, status: int, payload: str, usage: LineUsage | None = None) -> LineAnswer:
    """payload: JSON."""
    return LineAnswer(
        job=job.number, line=line.number, custom_id=line.custom_id, status=status, payload=payload, usage=usage
    )
