"""How a line is tried again: it is asked for until it has an answer that is its own.

Knows what is an answer and what is none, how long to wait between tries, and how a line that breaks steps is told from
those that ran beside it. Which line is tried when, and where its answer goes, the runner knows.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable

from inflight.server.batch.answering import Answer, Answerer, NotNow, StepFailed
from inflight.server.batch.lines import BatchLine, line_id
from inflight.server.batch.records import Job, LineAnswer, LineUsage
from inflight.server.errors import ApiError
from inflight.server.json import told
from inflight.server.tenants import Tenant

SHORTEST_WAIT, USUAL_WAIT, LONGEST_WAIT = 0.05, 1.0, 60.0  # seconds between two tries
MOST_FAILED_STEPS = 3  # of one line, since the server started; the last one is the line's answer

log = logging.getLogger(__name__)


class RetryPolicy:
    def __init__(self, answerer: Answerer, tenant_of: Callable[[str], Tenant]):
        """tenant_of: the tenant of that name, as it is today."""
        self._answerer, self._tenant_of = answerer, tenant_of
        # A failed step ends everything in flight. Tried together again, a line that breaks each step it is in would
        # use up the tries of all the others; one at a time, it uses up its own.
        self._suspect = asyncio.Lock()

    async def answer(self, job: Job, line: BatchLine) -> LineAnswer:
        """However long it takes. Cancelled, the line has no answer."""
        failed_steps = 0
        while True:
            wait = USUAL_WAIT
            try:
                answer = await (self._ask_alone(job, line) if failed_steps else self._ask(job, line))
                return _line_answer(job, line, answer.status, answer.body.decode(), answer.usage)
            except NotNow as reason:
                log.debug("line %d of batch job %s waits: %s", line.number, job.id, reason)
                wait = reason.retry_after or USUAL_WAIT
            except StepFailed as failure:
                failed_steps += 1
                if failed_steps == MOST_FAILED_STEPS:
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

    async def _ask_alone(self, job: Job, line: BatchLine) -> Answer:
        async with self._suspect:
            try:
                return await self._ask(job, line)
            except StepFailed:
                # Perhaps the fault is the engine's, and passes: the next suspects are not to fall to it in a row.
                await asyncio.sleep(USUAL_WAIT)
                raise

    async def _ask(self, job: Job, line: BatchLine) -> Answer:
        request_id = line_id(job.id, line.number)
        return await self._answerer.answer(line.url, line.body, self._tenant_of(job.tenant), request_id)


def _is_cancelled() -> bool:
    """Not a panic that looks like it. A function, for a task in a frame that its own exception holds is a cycle."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _refused(job: Job, line: BatchLine, error: ApiError) -> LineAnswer:
    """As the endpoint of the line would tell it."""
    status, body = told(error, line.url)
    return _line_answer(job, line, status, json.dumps(body, allow_nan=False))


def _line_answer(job: Job, line: BatchLine, status: int, payload: str, usage: LineUsage | None = None) -> LineAnswer:
    """payload: JSON."""
    return LineAnswer(
        job=job.number, line=line.number, custom_id=line.custom_id, status=status, payload=payload, usage=usage
    )
