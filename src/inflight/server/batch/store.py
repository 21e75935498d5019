"""Files, jobs and answers, kept durably: every verb is one transaction.

Knows the queries, and group commits of answers: those that come while a commit runs share the next one. A tenant's
verbs see that tenant's rows alone.

Before content is written, and when a row is deleted whose content is still there, the id stands among the leftovers: so
the next start can tell what is ours to remove.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields
from functools import partial
from typing import Any

from inflight.engine.event_stream import set_outcome
from inflight.server.batch.clock import KeptTime
from inflight.server.batch.database import Database
from inflight.server.batch.quotas import OverQuota, Usage
from inflight.server.batch.records import RUNNING, Job, LineAnswer, Proofs, StoredFile

_FILE_COLUMNS = tuple(item.name for item in fields(StoredFile))
_ANSWER_COLUMNS = tuple(item.name for item in fields(LineAnswer) if item.name != "usage")  # its job sums it up
_ADD_USAGE = (
    "UPDATE jobs SET model = ?, input_tokens = input_tokens + ?, cached_tokens = cached_tokens + ?, "
    "output_tokens = output_tokens + ? WHERE number = ?"
)
_RUNNING = f"status IN ({', '.join(repr(status) for status in RUNNING)})"


class Missing(LookupError):
    """There is no such row for this tenant. The first argument is the id."""


class InUse(RuntimeError):
    """The file is the input of a job that has not ended. The first argument is the job's id."""


class TooMany(RuntimeError):
    """The tenant has as many jobs under way as it may."""


class Store:
    def __init__(self, database: Database):
        self._database = database
        self._waiting: list[tuple[LineAnswer, asyncio.Future[None]]] = []
        self._committer: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """After what was handed in is committed."""
        if self._committer is not None:
            await asyncio.wait([self._committer])
        await asyncio.to_thread(self._database.close)

    # -- the store itself -----------------------------------------------------------------------------------------

    def proofs(self) -> Proofs:
        """Of everybody's content. Waits; for the start."""

        def work(connection: sqlite3.Connection) -> Proofs:
            lengths = {row["id"]: row["bytes"] for row in connection.execute("SELECT id, bytes FROM files")}
            leftovers = connection.execute("SELECT id, kind FROM leftovers").fetchall()
            kinds = ({row["id"] for row in leftovers if row["kind"] == kind} for kind in ("writing", "deleting"))
            return Proofs(lengths, *kinds)

        return self._database.run_now(work)

    def kept_time(self) -> KeptTime:
        """Waits; for the start."""
        query = "SELECT seconds, boot, boot_seconds FROM store"
        return self._database.run_now(lambda connection: KeptTime(*connection.execute(query).fetchone()))

    async def keep_time(self, time: KeptTime) -> None:
        await self._database.run(partial(_keep_time, time))

    def forget_now(self, ids: Iterable[str]) -> None:
        """`forget` for the start; waits."""
        self._database.run_now(partial(_forget, list(ids)))

    async def forget(self, ids: Iterable[str]) -> None:
        """Leftovers whose content is gone."""
        await self._database.run(partial(_forget, list(ids)))

    async def restore_reserve(self) -> None:
        """After content was removed."""
        await self._database.restore_reserve()

    # -- files --------------------------------------------------------------------------------------------------

    async def begin_files(self, ids: Iterable[str]) -> None:
        """On return content may be written under these ids. They get a row, or are forgotten."""
        rows = [(file_id, "writing") for file_id in ids]
        await self._database.run(lambda connection: _remember(rows, connection))

    async def usage(self, tenant: str) -> Usage:
        return await self._database.run(partial(_usage, tenant))

    async def add_file(self, file: StoredFile, most: Usage) -> None:
        """most: what the tenant may keep, this one included. Raises OverQuota."""

        def work(connection: sqlite3.Connection) -> None:
            usage = _usage(file.tenant, connection)
            if usage.files >= most.files or usage.bytes + file.bytes > most.bytes:
                raise OverQuota(usage)
            _insert_file(file, connection)

        await self._database.run(work)

    async def file(self, file_id: str, tenant: str) -> StoredFile:
        """Raises Missing."""
        return await self._database.run(partial(_file, file_id, tenant))

    async def files(
        self, tenant: str, *, after: str | None, limit: int, purpose: str | None, descending: bool
    ) -> list[StoredFile]:
        """Raises Missing for an unknown `after`."""

        def work(connection: sqlite3.Connection) -> list[StoredFile]:
            where, values = "(? IS NULL OR purpose = ?)", [purpose, purpose]
            return [
                StoredFile.of(row)
                for row in _page(connection, "files", tenant, after, limit, descending, where, values)
            ]

        return await self._database.run(work)

    async def delete_file(self, file_id: str, tenant: str) -> None:
        """Its content is a leftover then, until it is forgotten. Raises Missing, or InUse."""

        def work(connection: sqlite3.Connection) -> None:
            _file(file_id, tenant, connection)
            query = f"SELECT id FROM jobs WHERE input_file_id = ? AND {_RUNNING} LIMIT 1"
            user = connection.execute(query, (file_id,)).fetchone()
            if user is not None:
                raise InUse(user["id"])
            connection.execute("DELETE FROM files WHERE id = ?", (file_id,))
            _remember([(file_id, "deleting")], connection)

        await self._database.run_on_full_disk(work)

    # -- jobs ---------------------------------------------------------------------------------------------------

    async def add_job(self, values: dict[str, Any], *, most_jobs: int | None, most: Usage, time: KeptTime) -> Job:
        """values: columns of a new job. most_jobs: under way, that the tenant may have. most: what it may keep; once
        that much is there, no job may add to it. time: the clock that the job's window is measured by. Raises Missing
        (of the input file), TooMany, OverQuota."""

        def work(connection: sqlite3.Connection) -> Job:
            file = _file(values["input_file_id"], values["tenant"], connection)
            if file.purpose != "batch":
                raise Missing(file.id)
            if most_jobs is not None:
                query = f"SELECT count(*) FROM jobs WHERE tenant = ? AND {_RUNNING}"
                if connection.execute(query, (values["tenant"],)).fetchone()[0] >= most_jobs:
                    raise TooMany(most_jobs)
            usage = _usage(values["tenant"], connection)
            if usage.files >= most.files or usage.bytes >= most.bytes:
                raise OverQuota(usage)
            _keep_time(time, connection)
            row = {**values, "metadata": json.dumps(values["metadata"])}
            _insert(connection, "jobs", row)
            return _job(values["id"], values["tenant"], connection)

        return await self._database.run(work)

    async def job(self, job_id: str, tenant: str) -> Job:
        """Raises Missing."""
        return await self._database.run(partial(_job, job_id, tenant))

    async def jobs(self, tenant: str, *, after: str | None, limit: int) -> list[Job]:
        """The newest first. Raises Missing for an unknown `after`."""

        def work(connection: sqlite3.Connection) -> list[Job]:
            return [Job.of(row) for row in _page(connection, "jobs", tenant, after, limit, True, "true", [])]

        return await self._database.run(work)

    async def unended(self) -> list[Job]:
        """Everybody's, the oldest first."""
        query = f"SELECT * FROM jobs WHERE {_RUNNING} ORDER BY number"
        return await self._database.run(lambda connection: [Job.of(row) for row in connection.execute(query)])

    async def move(self, job: Job, to: str, **values: int) -> Job:
        """The next status, unless somebody else has moved the job since `job` was read. Returns what is there now.

        values: columns that change with it.
        """

        def work(connection: sqlite3.Connection) -> Job:
            _update(connection, job, {"status": to, **values})
            return _job(job.id, job.tenant, connection)

        return await self._database.run(work)

    async def end(self, job: Job, to: str, files: Sequence[StoredFile], **values: Any) -> Job:
        """The last status, with the files it leaves; the answers, which stand in them now, are forgotten."""

        def work(connection: sqlite3.Connection) -> Job:
            row = {**values, "errors": json.dumps(values.get("errors", job.errors))}
            if _update(connection, job, {"status": to, **row}):
                for file in files:
                    _insert_file(file, connection)
                connection.execute("DELETE FROM answers WHERE job = ?", (job.number,))
            return _job(job.id, job.tenant, connection)

        return await self._database.run(work)

    # -- answers ------------------------------------------------------------------------------------------------

    async def keep(self, answers: Sequence[LineAnswer]) -> None:
        """On return they are durable, and counted in their jobs. A line that has an answer keeps the one it has.

        Raises OSError where the disk refuses; anything else is the fault of one of these answers.
        """
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in answers]
        self._waiting += zip(answers, futures, strict=True)
        if self._committer is None:
            self._committer = asyncio.create_task(self._commit())
        await asyncio.gather(*futures)

    async def answered(self, job: Job) -> set[int]:
        """Numbers of the lines that have an answer."""
        query = "SELECT line FROM answers WHERE job = ?"
        return await self._database.run(
            lambda connection: {row["line"] for row in connection.execute(query, (job.number,))}
        )

    async def answers(self, job: Job, after: int, most: int, most_bytes: int) -> list[LineAnswer]:
        """In the order of the lines, from the one behind line `after`. It ends with the one that reaches most_bytes."""
        query = f"SELECT {', '.join(_ANSWER_COLUMNS)} FROM answers WHERE job = ? AND line > ? ORDER BY line LIMIT ?"

        def work(connection: sqlite3.Connection) -> list[LineAnswer]:
            page: list[LineAnswer] = []
            left = most_bytes
            rows = connection.execute(query, (job.number, after, most))
            while left > 0 and (row := rows.fetchone()) is not None:
                page.append(LineAnswer(**dict(row)))
                left -= len(str(row["payload"]))
            return page

        return await self._database.run(work)

    async def _commit(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            failure = await self._inserted([answer for answer, _ in batch])
            if failure is None or isinstance(failure, OSError):
                for _, future in batch:
                    set_outcome(future, failure)
            else:  # by one of them, which is not to take the others with it
                for answer, future in batch:
                    set_outcome(future, await self._inserted([answer]))
        self._committer = None

    async def _inserted(self, answers: list[LineAnswer]) -> Exception | None:
        """What kept them all from being inserted."""
        try:
            await self._database.run(partial(_insert_answers, answers))
        except Exception as error:
            return error
        return None


def _insert(connection: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


def _insert_file(file: StoredFile, connection: sqlite3.Connection) -> None:
    _insert(connection, "files", {name: getattr(file, name) for name in _FILE_COLUMNS})
    _forget([file.id], connection)


def _remember(rows: list[tuple[str, str]], connection: sqlite3.Connection) -> None:
    connection.executemany("INSERT OR REPLACE INTO leftovers (id, kind) VALUES (?, ?)", rows)


def _forget(ids: list[str], connection: sqlite3.Connection) -> None:
    connection.executemany("DELETE FROM leftovers WHERE id = ?", [(one,) for one in ids])


def _usage(tenant: str, connection: sqlite3.Connection) -> Usage:
    query = "SELECT coalesce(sum(bytes), 0), count(*) FROM files WHERE tenant = ?"
    return Usage(*connection.execute(query, (tenant,)).fetchone())


def _keep_time(time: KeptTime, connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE store SET seconds = ?, boot = ?, boot_seconds = ?", astuple(time))


def _insert_answers(answers: list[LineAnswer], connection: sqlite3.Connection) -> None:
    marks = ", ".join("?" * len(_ANSWER_COLUMNS))
    insert = f"INSERT INTO answers ({', '.join(_ANSWER_COLUMNS)}) VALUES ({marks}) ON CONFLICT DO NOTHING"
    for answer in answers:
        values = tuple(getattr(answer, name) for name in _ANSWER_COLUMNS)
        if connection.execute(insert, values).rowcount:
            column = "completed" if answer.good else "failed"
            connection.execute(f"UPDATE jobs SET {column} = {column} + 1 WHERE number = ?", (answer.job,))
            if answer.usage is not None:
                connection.execute(_ADD_USAGE, (*astuple(answer.usage), answer.job))


def _update(connection: sqlite3.Connection, job: Job, values: dict[str, Any]) -> bool:
    """False when the job is no longer in the status that it was read in."""
    changes = ", ".join(f"{name} = ?" for name in values)
    query = f"UPDATE jobs SET {changes} WHERE number = ? AND status = ?"
    return connection.execute(query, (*values.values(), job.number, job.status)).rowcount == 1


def _file(file_id: str, tenant: str, connection: sqlite3.Connection) -> StoredFile:
    row = connection.execute("SELECT * FROM files WHERE id = ? AND tenant = ?", (file_id, tenant)).fetchone()
    if row is None:
        raise Missing(file_id)
    return StoredFile.of(row)


def _job(job_id: str, tenant: str, connection: sqlite3.Connection) -> Job:
    row = connection.execute("SELECT * FROM jobs WHERE id = ? AND tenant = ?", (job_id, tenant)).fetchone()
    if row is None:
        raise Missing(job_id)
    return Job.of(row)


def _page(
    connection: sqlite3.Connection,
    table: str,
    tenant: str,
    after: str | None,
    limit: int,
    descending: bool,
    where: str,
    values: list[Any],
) -> list[sqlite3.Row]:
    """Rows of a tenant in the order they came, from the one behind `after`."""
    if after is not None:
        query = f"SELECT number FROM {table} WHERE id = ? AND tenant = ?"
        row = connection.execute(query, (after, tenant)).fetchone()
        if row is None:
            raise Missing(after)
        where, values = f"{where} AND number {'<' if descending else '>'} ?", [*values, row["number"]]
    order = "DESC" if descending else "ASC"
    query = f"SELECT * FROM {table} WHERE tenant = ? AND {where} ORDER BY number {order} LIMIT ?"
    return connection.execute(query, (tenant, *values, limit)).fetchall()
