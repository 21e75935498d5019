"""Batch jobs and the answers to their lines in the database: every verb is one transaction.

A tenant's verbs see that tenant's rows alone. What another process must know of a job is in its row: a job is cancelled
by its status, which the worker reads.
"""

from __future__ import annotations

import json
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Self

import msgspec

from inflight.counted import shortened
from inflight.server.errors import ApiError, invalid
from inflight.server.jobs import files
from inflight.server.jobs.clock import StoreClock
from inflight.server.jobs.database import Database
from inflight.server.jobs.files import Files, StoredFile, no_file
from inflight.server.tenants import Tenant

RUNNING = ("validating", "in_progress", "finalizing", "cancelling")
ENDED = ("completed", "failed", "expired", "cancelled")
WINDOW = re.compile(r"([1-9][0-9]{0,3})([mhd])")
_SECONDS = {"m": 60, "h": 3600, "d": 86400}
_RUNNING = f"status IN ({', '.join(map(repr, RUNNING))})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A batch job. Times are whole seconds of the wall clock; the order of jobs is `number`'s, which no clock moves.

    total, completed, failed: lines of the input file, those answered with 2xx, those answered otherwise.
    errors: why the job failed, a list of {code, message, param, line}. due: seconds of the clock when its window ends.
    model: that served its lines; input_tokens include cached_tokens.
    """

    number: int
    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: dict[str, str] | None
    status: str
    created_at: int
    expires_at: int
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list)
    model: str | None = None
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    due: float = 0.0

    @classmethod
    def of(cls, row: sqlite3.Row) -> Self:
        json_values = {name: json.loads(row[name]) for name in ("metadata", "errors")}
        return msgspec.convert({**dict(row), **json_values}, cls)

    def stamp(self, now: float) -> int:
        """Return the time of the next thing that happens to this job, never before the last one, if a clock jumps."""
        happened = (self.created_at, self.in_progress_at, self.finalizing_at, self.cancelling_at)
        return max(int(now), *(time for time in happened if time is not None))


@dataclass(frozen=True, slots=True)
class LineUsage:
    """Tokens that a line was served with, and by which model. input_tokens include cached_tokens."""

    model: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineAnswer:
    """How one line ended. line: its number in the file, from 1.

    status: HTTP status of the answer, with its body as `payload`; None for a line that was not asked, with its error as
    `payload`. payload: JSON text. usage: of a line that was served; its job counts it.
    """

    job: int
    line: int
    custom_id: str | None
    status: int | None
    payload: str
    usage: LineUsage | None = None

    @property
    def is_good(self) -> bool:
        return isinstance(self.status, int) and 200 <= self.status < 300


class Jobs:
    """Every method raises ApiError: StorageError where the disk refuses, 404 where the tenant has no such job."""

    def __init__(
        self,
        database: Database,
        files: Files,
        clock: StoreClock,
        changed: Callable[[], None],
        *,
        now: Callable[[], float] = time.time,
    ):
        """
        Args:
            clock: Windows are measured by it.
            changed: Called after a job was created or cancelled here.
            now: Seconds of the wall clock.
        """
        self._database, self._files, self._clock = database, files, clock
        self._changed, self._now = changed, now

    # -- of tenants --------------------------------------------------------------------------------------------------

    async def create(
        self, tenant: Tenant, *, input_file_id: str, endpoint: str, window: str, metadata: dict[str, str] | None
    ) -> Job:
        """Create a job; on return it survives the process."""
        created, seconds = int(self._now()), window_seconds(window)
        job_id = f"batch_{secrets.token_hex(16)}"

        def work(connection: sqlite3.Connection) -> Job:
            self._check(tenant, input_file_id, connection)
            self._clock.save(connection)
            _insert_job(
                connection,
                id=job_id,
                tenant=tenant.name,
                endpoint=endpoint,
                input_file_id=input_file_id,
                completion_window=window,
                metadata=json.dumps(metadata),
                status="validating",
                created_at=created,
                expires_at=created + seconds,
                due=self._clock.now() + seconds,
            )
            return _job(job_id, tenant.name, connection)

        job = await self._database.write(work)
        self._changed()
        return job

    def _check(self, tenant: Tenant, input_file_id: str, connection: sqlite3.Connection) -> None:
        """Raise ApiError where the tenant may not have this job."""
        try:
            purpose = files.found(input_file_id, tenant.name, connection).purpose
        except ApiError:
            purpose = ""
        if purpose != "batch":
            raise no_file(input_file_id, "input_file_id")
        if (limit := tenant.max_batch_jobs) is not None:
            query = f"SELECT count(*) FROM jobs WHERE tenant = ? AND {_RUNNING}"
            if connection.execute(query, (tenant.name,)).fetchone()[0] >= limit:
                raise ApiError(
                    429,
                    f"{limit} batch jobs have not ended, the maximum of this API key (max_batch_jobs); wait, or cancel "
                    "one.",
                    type="rate_limit_error",
                    code="too_many_batch_jobs",
                )
        if files.stores_no_more(tenant, self._files.quota(tenant), connection):
            raise self._files.refusal(connection, tenant, "what a job writes", None)

    async def retrieve(self, tenant: Tenant, job_id: str) -> Job:
        return await self._database.read(lambda connection: _job(job_id, tenant.name, connection))

    async def page(self, tenant: Tenant, *, after: str | None, limit: int) -> tuple[list[Job], bool]:
        """Return the newest first, and whether there are more."""

        def work(connection: sqlite3.Connection) -> list[Job]:
            before = None if after is None else _job(after, tenant.name, connection, "after").number
            query = "SELECT * FROM jobs WHERE tenant = ? AND (? IS NULL OR number < ?) ORDER BY number DESC LIMIT ?"
            return [Job.of(row) for row in connection.execute(query, (tenant.name, before, before, limit + 1))]

        jobs = await self._database.read(work)
        return jobs[:limit], len(jobs) > limit

    async def cancel(self, tenant: Tenant, job_id: str) -> Job:
        """Cancel the job; its answers stay available. Raises ApiError 409 when it has ended already."""

        def work(connection: sqlite3.Connection) -> Job:
            job = _job(job_id, tenant.name, connection)
            if job.status in ("validating", "in_progress"):
                _update(connection, job, {"status": "cancelling", "cancelling_at": job.stamp(self._now())})
            elif job.status not in ("cancelling", "cancelled"):
                raise ApiError(
                    409,
                    f"The job is {job.status}; only jobs that are validating or in_progress can be cancelled.",
                    code="job_not_cancellable",
                )
            return _job(job_id, tenant.name, connection)

        job = await self._database.write(work)
        self._changed()
        return job

    # -- of the worker -----------------------------------------------------------------------------------------------

    async def running(self) -> list[Job]:
        """Jobs of all tenants that have not ended, the oldest first."""
        query = f"SELECT * FROM jobs WHERE {_RUNNING} ORDER BY number"
        return await self._database.read(lambda connection: [Job.of(row) for row in connection.execute(query)])

    async def data_version(self) -> int:
        """Return a number that differs when another process has written to the database."""
        query = "PRAGMA data_version"
        return await self._database.read(lambda connection: int(connection.execute(query).fetchone()[0]))

    async def input_file(self, job: Job) -> StoredFile:
        return await self._files.retrieve(Tenant(name=job.tenant), job.input_file_id)

    async def move(self, job: Job, status: str, **values: int) -> Job:
        """Change the status, unless it was changed since `job` was read. values: columns that change with it.

        Returns:
            The job as it is then.
        """

        def work(connection: sqlite3.Connection) -> Job:
            _update(connection, job, {"status": status, **values})
            return _job(job.id, job.tenant, connection)

        return await self._database.write(work)

    async def end(
        self, job: Job, status: str, outputs: Iterable[StoredFile], unanswered: int = 0, **values: Any
    ) -> Job:
        """Make the last `move`: store the files that the job leaves, and remove its answers, which stand in them.

        Args:
            unanswered: Lines that were written as errors without an answer.
        """

        def work(connection: sqlite3.Connection) -> Job:
            columns = {**values, "errors": json.dumps(values.get("errors", job.errors))}
            if _update(connection, job, {"status": status, **columns}):
                for file in outputs:
                    files.store(file, connection)
                connection.execute("UPDATE jobs SET failed = failed + ? WHERE number = ?", (unanswered, job.number))
                for table in ("answers", "begun"):
                    connection.execute(f"DELETE FROM {table} WHERE job = ?", (job.number,))
            return _job(job.id, job.tenant, connection)

        return await self._database.write(work)

    async def save_time(self) -> None:
        await self._database.write(self._clock.save)

    # -- lines -------------------------------------------------------------------------------------------------------

    async def begin(self, job: int, line: int, ends: int) -> None:
        """Mark the line as in flight, before it is asked. ends: unclean ends that it has seen."""
        query = "INSERT OR REPLACE INTO begun (job, line, ends, in_flight) VALUES (?, ?, ?, true)"
        await self._database.write(lambda connection: connection.execute(query, (job, line, ends)).rowcount)

    async def leave(self, job: int, line: int, ends: int) -> None:
        """Mark the line as in flight no more; it has no answer."""

        def work(connection: sqlite3.Connection) -> None:
            query = "UPDATE begun SET ends = ?, in_flight = false WHERE job = ? AND line = ?"
            connection.execute(query, (ends, job, line))
            connection.execute("DELETE FROM begun WHERE job = ? AND line = ? AND ends = 0", (job, line))

        await self._database.write(work)

    async def count_unclean_ends(self) -> tuple[int, dict[tuple[int, int], int]]:
        """Count one end more for lines that were in flight when the last worker died.

        Returns:
            The number of those lines, and how many unclean ends each line has seen, by job and line.
        """

        def work(connection: sqlite3.Connection) -> tuple[int, dict[tuple[int, int], int]]:
            query = "UPDATE begun SET ends = ends + 1, in_flight = false WHERE in_flight"
            count = connection.execute(query).rowcount
            rows = connection.execute("SELECT job, line, ends FROM begun")
            return count, {(row["job"], row["line"]): row["ends"] for row in rows}

        return await self._database.write(work)

    async def keep(self, answer: LineAnswer) -> None:
        """Store an answer; on return it is durable, and its job counts it. A line that has an answer keeps the one it
        has."""

        def work(connection: sqlite3.Connection) -> None:
            query = "INSERT INTO answers (job, line, custom_id, status, payload) VALUES (?, ?, ?, ?, ?)"
            columns = (answer.job, answer.line, answer.custom_id, answer.status, answer.payload)
            if not connection.execute(f"{query} ON CONFLICT DO NOTHING", columns).rowcount:
                return
            count = "completed" if answer.is_good else "failed"
            connection.execute(f"UPDATE jobs SET {count} = {count} + 1 WHERE number = ?", (answer.job,))
            connection.execute("DELETE FROM begun WHERE job = ? AND line = ?", (answer.job, answer.line))
            if answer.usage is not None:
                query = "UPDATE jobs SET model = ?, input_tokens = input_tokens + ?, "
                query += "cached_tokens = cached_tokens + ?, output_tokens = output_tokens + ? WHERE number = ?"
                connection.execute(query, (*astuple(answer.usage), answer.job))

        await self._database.write(work)

    async def answered(self, job: Job) -> set[int]:
        """Numbers of the lines that have an answer."""
        query = "SELECT line FROM answers WHERE job = ?"
        return await self._database.read(
            lambda connection: {row["line"] for row in connection.execute(query, (job.number,))}
        )

    async def answers(self, job: Job, after: int, max_lines: int, max_bytes: int) -> Sequence[LineAnswer]:
        """Answers in the order of the lines, from the one behind line `after`; the last one may exceed max_bytes."""
        query = "SELECT job, line, custom_id, status, payload FROM answers WHERE job = ? AND line > ? ORDER BY line"

        def work(connection: sqlite3.Connection) -> list[LineAnswer]:
            page: list[LineAnswer] = []
            left, rows = max_bytes, connection.execute(f"{query} LIMIT ?", (job.number, after, max_lines))
            while left > 0 and (row := rows.fetchone()) is not None:
                page.append(LineAnswer(**dict(row)))
                left -= len(row["payload"])
            return page

        return await self._database.read(work)


def window_seconds(window: str) -> int:
    """Return the seconds of "90m", "24h" or "7d". Raises ApiError 400."""
    match = WINDOW.fullmatch(window)
    if match is None:
        raise invalid(
            f"completion_window is {shortened(window)!r}; give minutes, hours or days, such as 24h.",
            "completion_window",
        )
    return int(match[1]) * _SECONDS[match[2]]


def _insert_job(connection: sqlite3.Connection, **row: Any) -> None:
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO jobs ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


def _update(connection: sqlite3.Connection, job: Job, values: dict[str, Any]) -> bool:
    """Change the job. Return False where it has another status than when it was read."""
    changes = ", ".join(f"{name} = ?" for name in values)
    query = f"UPDATE jobs SET {changes} WHERE number = ? AND status = ?"
    return connection.execute(query, (*values.values(), job.number, job.status)).rowcount == 1


def _job(job_id: str, tenant: str, connection: sqlite3.Connection, param: str | None = None) -> Job:
    row = connection.execute("SELECT * FROM jobs WHERE id = ? AND tenant = ?", (job_id, tenant)).fetchone()
    if row is None:
        sentence = f"There is no batch {shortened(str(job_id))!r}; list your batches."
        raise ApiError(404, sentence, param=param, code="not_found")
    return Job.of(row)
