"""How a job ends: every line of it in one of its two files, whatever ended it, once its lines were counted.

Knows what stands in the place of an answer, and the order in which files and rows become durable. When a job ends, and
how, the runner knows.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from inflight.server.batch.files import Files
from inflight.server.batch.lines import BadLine, BatchLine, error_of
from inflight.server.batch.output_files import assemble
from inflight.server.batch.persistence import InputGone, Persistence
from inflight.server.batch.records import Job, LineAnswer
from inflight.server.batch.source import JobInput
from inflight.server.batch.store import Store

MOST_READING = 2  # ends that read their job's input, of which they hold as much as the runner does
_WHY_UNANSWERED = {
    "expired": ("batch_expired", "The line was not answered before the completion window ended."),
    "cancelled": ("batch_cancelled", "The line was not answered before the job was cancelled."),
}
_WHY_FAILED = "The line was not answered before the job failed; `errors` of the job says why."

log = logging.getLogger(__name__)


class Ending:
    def __init__(
        self,
        store: Store,
        files: Files,
        storage: Persistence,
        read: Callable[[Job], Awaitable[JobInput]],
        now: Callable[[], float],
    ):
        """read: a job's input, from its beginning. now: seconds of the wall clock."""
        self._store, self._files, self._storage, self._read, self._now = store, files, storage, read, now
        self._reading = asyncio.Semaphore(MOST_READING)

    async def end(self, job: Job, status: str, broken: Mapping[str, Any] | None, ahead: Iterable[BatchLine]) -> Job:
        """The job as it is then; in another status, if somebody else moved it in the meantime.

        broken: the error that ends it. ahead: lines that were read and have no answer. Can be broken off anywhere and
        done again.
        """
        errors = [dict(broken)] if broken is not None else []
        if job.in_progress_at is not None:
            if status != "completed":
                await self._answer_rest(job, status, broken, ahead)
            left = job.total - len(await self._storage.durably(partial(self._store.answered, job)))
            if left > 0:
                why = f"{left} of {job.total} lines could not be read or kept, and stand in no file; send them again."
                errors.append({"code": "lines_lost", "message": why})
        return await self._write(job, status, [{"param": None, "line": None, **error} for error in errors])

    async def _write(self, job: Job, status: str, errors: list[dict[str, Any]]) -> Job:
        outputs = await self._storage.durably(partial(assemble, job, self._store, self._files))
        values: dict[str, Any] = {f"{status}_at": job.stamp(self._now())}
        values["output_file_id"] = outputs.output.id if outputs.output is not None else None
        values["error_file_id"] = outputs.errors.id if outputs.errors is not None else None
        if errors:
            values["errors"] = errors
        try:
            ended = await self._storage.durably(partial(self._store.end, job, status, outputs.files, **values))
        except Exception:
            await self._files.abandon(outputs.temp_files)
            raise
        if ended.status == status:
            await self._files.publish(outputs.temp_files)
        else:
            await self._files.abandon(outputs.temp_files)
        return ended

    async def _answer_rest(
        self, job: Job, status: str, broken: Mapping[str, Any] | None, ahead: Iterable[BatchLine]
    ) -> None:
        """An answer for every line that has none, as far as the input can be read."""
        code, message = _WHY_UNANSWERED.get(status) or ((broken or {}).get("code", "server_error"), _WHY_FAILED)
        await self._keep_each(job, [BadLine(line.number, code, message, line.custom_id) for line in ahead])
        try:
            async with self._reading:
                await self._answer_unread(job, code, message)
        except InputGone:
            pass  # how many lines that leaves out, the job's errors say
        except Exception as error:  # what made the job fail may be in its file
            log.error("lines of batch job %s cannot be read", job.id, exc_info=error)

    async def _answer_unread(self, job: Job, code: str, message: str) -> None:
        """Of what is there of the input, whether or not it is what was stored."""
        answered = await self._storage.durably(partial(self._store.answered, job))
        source, left = await self._read(job), job.total - len(answered)
        while not source.ended and left > 0:
            page = (await source.page_as_it_is(answered))[:left]
            left -= len(page)
            bad = [
                line if isinstance(line, BadLine) else BadLine(line.number, code, message, line.custom_id)
                for line in page
            ]
            await self._keep_each(job, bad)

    async def _keep_each(self, job: Job, lines: Iterable[BadLine]) -> None:
        """One that cannot be kept takes no other with it."""
        keeping = (self._storage.durably(partial(self._store.keep, [line_fault(job, line)])) for line in lines)
        failures = [one for one in await asyncio.gather(*keeping, return_exceptions=True) if one is not None]
        if failures:
            log.error("%d lines of batch job %s cannot be kept", len(failures), job.id, exc_info=failures[0])


def line_fault(job: Job, bad: BadLine) -> LineAnswer:
    """What stands in the place of a line's answer."""
    payload = json.dumps(error_of(bad.code, str(bad), bad.number))
    return LineAnswer(job=job.number, line=bad.number, custom_id=bad.custom_id, status=None, payload=payload)
