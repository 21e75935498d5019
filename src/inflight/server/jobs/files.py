"""Files of tenants: received, listed, read, deleted. The content of each lies under its random id.

A row is `writing` before the first byte of its content is written in partial/, and `stored` once all of it is on the
disk; then the content is moved to files/. Bytes that are not stored yet count for the quota of their tenant, whichever
process receives them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from typing import Protocol

from inflight.counted import shortened
from inflight.private_files import open_private
from inflight.server.errors import ApiError, invalid
from inflight.server.jobs.database import Database
from inflight.server.jobs.folder import DataDirectory, is_alive, sync_folder
from inflight.server.jobs.storage import StorageError, storage_errors
from inflight.server.tenants import Tenant

MAX_NAME = 255  # characters
_ABSENT = (errno.ENOENT, errno.EISDIR)
_BARRED = (errno.EACCES, errno.EPERM, errno.ELOOP)  # another try would not help
_COLUMNS = ("id", "tenant", "filename", "purpose", "bytes", "created_at")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """purpose: "batch" for uploads, "batch_output" for files of jobs. filename: as the client has it, never a path."""

    id: str
    tenant: str
    filename: str
    purpose: str
    bytes: int
    created_at: int


class Unreadable(ApiError):
    """The content of a file is not what was stored, and will not be. cause: the sentence without its next step."""

    def __init__(self, code: str, cause: str):
        sentence = f"{cause}; delete the file, or ask the operator to restore it."
        super().__init__(404 if code == "content_missing" else 409, sentence, code=code)
        self.cause = cause


class Upload(Protocol):
    """An upload that is being received. `filename` and `purpose` are known when `content` has ended."""

    filename: str | None
    purpose: str | None

    def content(self) -> AsyncIterator[bytes]:
        """Yield its bytes. Raises ApiError where it breaks off or is no upload."""
        ...


class Content:
    """The content of a file while it is written. Every method waits for the disk, and raises StorageError."""

    def __init__(self, data: DataDirectory, file_id: str):
        self.id, self.bytes = file_id, 0
        self._path, self._published = data.partial / file_id, data.files / file_id
        with storage_errors():
            self._file = open(self._path, "xb", opener=open_private)  # noqa: SIM115  (closed by seal and discard)

    def write(self, data: bytes) -> None:
        with storage_errors():
            self._file.write(data)
        self.bytes += len(data)

    def seal(self) -> None:
        """Put all of it on the disk: on return its row may be stored."""
        with storage_errors():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            sync_folder(self._path.parent)

    def publish(self) -> None:
        """Move it to files/, after its row was stored. What the disk refuses, the next start of the server does."""
        with contextlib.suppress(FileNotFoundError):  # its tenant has deleted it
            try:
                if os.path.lexists(self._published):
                    raise FileExistsError(errno.EEXIST, "another file has its name", self._published)
                self._path.rename(self._published)
                for folder in (self._published.parent, self._path.parent):
                    sync_folder(folder)
            except FileNotFoundError:
                raise
            except OSError as error:
                log.warning("%s stays in partial/ until the next start: %s", self._path.name, error)

    def discard(self) -> None:
        """Remove it. What the disk refuses, the next start of the server removes."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Quota:
    """Bytes and files that a tenant stores, or may store."""

    bytes: int
    files: int


class Files:
    """Every method raises ApiError: StorageError where the disk refuses, 404 where the tenant has no such file."""

    def __init__(
        self,
        data: DataDirectory,
        database: Database,
        *,
        max_bytes: int,
        max_stored_mb: float,
        max_stored_files: int,
        now: Callable[[], float] = time.time,
    ):
        """
        Args:
            max_bytes: Of one upload.
            max_stored_mb: MiB that a tenant may store which has no limit of its own.
            max_stored_files: The same of files.
            now: Seconds of the wall clock.
        """
        self._data, self._database, self._now = data, database, now
        self.max_bytes = max_bytes
        self._max_mb, self._max_files = max_stored_mb, max_stored_files

    # -- quotas ------------------------------------------------------------------------------------------------------

    def quota(self, tenant: Tenant) -> Quota:
        megabytes = self._max_mb if tenant.max_stored_mb is None else tenant.max_stored_mb
        files = self._max_files if tenant.max_stored_files is None else tenant.max_stored_files
        return Quota(int(megabytes * 2**20), files)

    def refusal(
        self, connection: sqlite3.Connection, tenant: Tenant, what: str = "this one", param: str | None = "file"
    ) -> ApiError:
        """413, which no client tries again by itself. what: does not fit."""
        stored, quota = _usage(tenant.name, "state = 'stored'", connection), self.quota(tenant)
        mebibytes = f"{stored.bytes / 2**20:.1f} of {quota.bytes / 2**20:g} MiB"
        return ApiError(
            413,
            f"Storage quota exceeded: {stored.files} of {quota.files} files, {mebibytes} in use, and {what} does not "
            "fit; delete files.",
            param=param,
            code="storage_quota_exceeded",
        )

    # -- in ---------------------------------------------------------------------------------------------------------

    async def receive(self, tenant: Tenant, upload: Upload) -> StoredFile:
        """Store an upload; one that breaks off leaves nothing."""
        quota = self.quota(tenant)

        def check(connection: sqlite3.Connection) -> None:
            usage = _usage(tenant.name, "state != 'deleting'", connection)
            if usage.files >= quota.files or usage.bytes > quota.bytes:
                raise self.refusal(connection, tenant)

        def take(nbytes: int, connection: sqlite3.Connection) -> None:
            if _usage(tenant.name, "state != 'deleting'", connection).bytes + nbytes > quota.bytes:
                raise self.refusal(connection, tenant)
            connection.execute("UPDATE files SET bytes = bytes + ? WHERE id = ?", (nbytes, content.id))

        content = await self.begin(tenant.name, check)
        try:
            async for piece in upload.content():
                if content.bytes + len(piece) > self.max_bytes:
                    raise too_large(self.max_bytes)
                await self._database.write(partial(take, len(piece)))
                await asyncio.to_thread(content.write, piece)
            purpose, name = _purpose(upload.purpose), _name(upload.filename)
            if content.bytes == 0:
                raise invalid("The file is empty; give one with at least one line.", "file", "empty_file")
            file = self.described(content, tenant.name, name, purpose)
            await asyncio.to_thread(content.seal)
        except BaseException:
            await asyncio.shield(self.abandon([content]))
            raise
        # A client that goes away now has stored the file: whether its row is written could not be known.
        await asyncio.shield(self._stored(file, content))
        return file

    async def _stored(self, file: StoredFile, content: Content) -> None:
        try:
            await self._database.write(partial(store, file))
        except BaseException:
            await self.abandon([content])
            raise
        await asyncio.to_thread(content.publish)

    async def begin(self, tenant: str, check: Callable[[sqlite3.Connection], None] | None = None) -> Content:
        """Begin a file, its row before its content. Then `store` its row, or `abandon` it.

        Args:
            check: Raises ApiError where the tenant may not begin it; None for files of jobs, which no quota refuses.
        """
        file_id = f"file-{secrets.token_hex(16)}"

        def work(connection: sqlite3.Connection) -> None:
            if check is not None:
                check(connection)
            connection.execute(
                "INSERT INTO files (id, tenant, filename, purpose, bytes, created_at, state, process)"
                " VALUES (?, ?, '', 'batch', 0, 0, 'writing', ?)",
                (file_id, tenant, os.getpid()),
            )

        await self._database.write(work)
        making = asyncio.create_task(asyncio.to_thread(Content, self._data, file_id))
        try:
            return await asyncio.shield(making)
        except BaseException:
            await asyncio.shield(self._take_back(making, file_id))
            raise

    async def _take_back(self, making: asyncio.Task[Content], file_id: str) -> None:
        """Remove a file whose content could not be made, or is made although its upload was cancelled."""
        with contextlib.suppress(StorageError):
            await asyncio.to_thread((await making).discard)
        await self._forget([file_id])

    def described(self, content: Content, tenant: str, filename: str, purpose: str) -> StoredFile:
        """Return the row of a file whose content is written."""
        created, nbytes = int(self._now()), content.bytes
        return StoredFile(
            id=content.id, tenant=tenant, filename=filename, purpose=purpose, bytes=nbytes, created_at=created
        )

    async def abandon(self, contents: Collection[Content]) -> None:
        """Remove files that were begun."""
        for content in contents:
            await asyncio.to_thread(content.discard)  # of a large file that takes its time
        await self._forget([content.id for content in contents])

    async def _forget(self, ids: Sequence[str]) -> None:
        """Remove rows that have no content any more; where the disk refuses, the next start does it."""
        with contextlib.suppress(StorageError):
            await self._database.write(partial(_delete, ids))

    def remove_abandoned(self) -> None:
        """Remove what processes that were killed were writing or deleting. Waits."""
        rows = self._database.write_now(
            lambda connection: connection.execute("SELECT id, process FROM files WHERE state != 'stored'").fetchall()
        )
        # This process has begun nothing yet: one that had its id is dead.
        ids = [row["id"] for row in rows if row["process"] == os.getpid() or not is_alive(row["process"])]
        if ids:
            for file_id in ids:
                self._remove(file_id)
            with contextlib.suppress(StorageError):
                self._database.write_now(partial(_delete, ids))

    # -- out ---------------------------------------------------------------------------------------------------------

    async def retrieve(self, tenant: Tenant, file_id: str) -> StoredFile:
        return await self._database.read(partial(found, file_id, tenant.name))

    async def page(
        self, tenant: Tenant, *, after: str | None, limit: int, purpose: str | None, descending: bool
    ) -> tuple[list[StoredFile], bool]:
        """Files in the order in which they came, and whether there are more."""

        def work(connection: sqlite3.Connection) -> list[StoredFile]:
            where = "tenant = :tenant AND state = 'stored' AND (:purpose IS NULL OR purpose = :purpose)"
            values = {"tenant": tenant.name, "purpose": purpose, "limit": limit + 1}
            if after is not None:
                query = "SELECT number FROM files WHERE id = ? AND tenant = ? AND state = 'stored'"
                row = connection.execute(query, (after, tenant.name)).fetchone()
                if row is None:
                    raise no_file(after, "after")
                values["number"] = row["number"]
                where += f" AND number {'<' if descending else '>'} :number"
            order = "DESC" if descending else "ASC"
            query = f"SELECT {', '.join(_COLUMNS)} FROM files WHERE {where} ORDER BY number {order} LIMIT :limit"
            return [StoredFile(**dict(row)) for row in connection.execute(query, values)]

        files = await self._database.read(work)
        return files[:limit], len(files) > limit

    async def open(self, tenant: Tenant, file_id: str) -> tuple[StoredFile, BufferedReader]:
        """Open the content, which stays readable when the file is deleted. Raises Unreadable."""
        file = await self.retrieve(tenant, file_id)
        return file, await asyncio.to_thread(self.opened, file)

    def opened(self, file: StoredFile, *, checked: bool = True) -> BufferedReader:
        """Open the content; waits. checked: refuse another length than was stored. Raises Unreadable."""
        content_of = f"The content of the file {file.id}"
        with storage_errors():
            try:
                content = self._found(file.id)
            except OSError as error:
                if error.errno in _ABSENT:
                    cause = f"{content_of} ({file.bytes} bytes) is gone from the data directory"
                    raise Unreadable("content_missing", cause) from None
                if error.errno in _BARRED:
                    raise Unreadable("content_damaged", f"{content_of} cannot be read ({error.strerror})") from None
                raise
            size = os.fstat(content.fileno()).st_size
        if checked and size != file.bytes:
            content.close()
            cause = f"{content_of} is damaged: it has {size} bytes, but {file.bytes} were stored"
            raise Unreadable("content_damaged", cause)
        return content

    def _found(self, file_id: str) -> BufferedReader:
        published = self._data.files / file_id
        for path in (published, self._data.partial / file_id):  # a row is stored before its content is moved
            with contextlib.suppress(FileNotFoundError):
                return path.open("rb")
        return published.open("rb")  # it was moved between two looks

    async def delete(self, tenant: Tenant, file_id: str) -> None:
        """Delete it, also on a full disk. Raises ApiError 409 while a job that has not ended reads it."""

        def work(connection: sqlite3.Connection) -> None:
            found(file_id, tenant.name, connection)
            query = "SELECT id FROM jobs WHERE input_file_id = ? AND status IN "
            query += "('validating', 'in_progress', 'finalizing', 'cancelling') LIMIT 1"
            if (job := connection.execute(query, (file_id,)).fetchone()) is not None:
                raise ApiError(
                    409,
                    f"The file is the input of the job {job['id']}, which has not ended; cancel it, or wait.",
                    code="file_in_use",
                )
            query = "UPDATE files SET state = 'deleting', process = ? WHERE id = ?"
            connection.execute(query, (os.getpid(), file_id))

        await self._database.write_on_full_disk(work)
        if await asyncio.to_thread(self._remove, file_id):
            await self._forget([file_id])
        await asyncio.to_thread(self._data.reserve.restore)

    def _remove(self, file_id: str) -> bool:
        """Remove the content; False: the next start does it."""
        try:
            for folder in (self._data.partial, self._data.files):  # the order in which content moves
                (folder / file_id).unlink(missing_ok=True)
        except OSError as error:
            log.warning("the content of %s cannot be removed until the next start: %s", file_id, error)
            return False
        return True


def found(file_id: str, tenant: str, connection: sqlite3.Connection) -> StoredFile:
    """Return the row of a stored file. Raises ApiError 404."""
    query = f"SELECT {', '.join(_COLUMNS)} FROM files WHERE id = ? AND tenant = ? AND state = 'stored'"
    row = connection.execute(query, (file_id, tenant)).fetchone()
    if row is None:
        raise no_file(file_id)
    return StoredFile(**dict(row))


def store(file: StoredFile, connection: sqlite3.Connection) -> None:
    """Its content is on the disk: from now on the file is there."""
    connection.execute(
        "UPDATE files SET state = 'stored', filename = ?, purpose = ?, bytes = ?, created_at = ? WHERE id = ?",
        (file.filename, file.purpose, file.bytes, file.created_at, file.id),
    )


def too_large(max_bytes: int) -> ApiError:
    most = f"{max_bytes / 2**20:g} MiB"
    return ApiError(413, f"The file is larger than {most}; split it.", param="file", code="file_too_large")


def no_file(file_id: object, param: str | None = None) -> ApiError:
    return ApiError(
        404, f"There is no file {shortened(str(file_id))!r}; list your files.", param=param, code="not_found"
    )


def _delete(ids: Sequence[str], connection: sqlite3.Connection) -> None:
    """Delete the rows of those of these files that are not stored."""
    query = "DELETE FROM files WHERE id = ? AND state != 'stored'"
    connection.executemany(query, [(one,) for one in ids])


def _usage(tenant: str, where: str, connection: sqlite3.Connection) -> Quota:
    query = f"SELECT coalesce(sum(bytes), 0), count(*) FROM files WHERE tenant = ? AND {where}"
    return Quota(*connection.execute(query, (tenant,)).fetchone())


def stores_no_more(tenant: Tenant, quota: Quota, connection: sqlite3.Connection) -> bool:
    usage = _usage(tenant.name, "state = 'stored'", connection)
    return usage.files >= quota.files or usage.bytes >= quota.bytes


def _purpose(purpose: str | None) -> str:
    if purpose is None:
        raise invalid('The upload has no purpose; give "batch".', "purpose", "missing_field")
    if purpose != "batch":
        raise invalid(f'purpose is {shortened(purpose)!r}; this server takes files for "batch" only.', "purpose")
    return purpose


def _name(filename: str | None) -> str:
    if not filename:
        raise invalid("The upload has no file; give one as the form field `file`.", "file", "missing_field")
    return filename[:MAX_NAME]
