"""Files of tenants: taken in, listed, given out, deleted. Content lies under the file's id; its name is only shown."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from io import BufferedReader
from typing import Protocol

from inflight.counted import shortened
from inflight.server.batch.data import DataDirectory
from inflight.server.batch.faults import storage_sentence, storage_told
from inflight.server.batch.quotas import Intake, OverQuota, Quotas
from inflight.server.batch.records import StoredFile, new_file_id
from inflight.server.batch.store import InUse, Missing, Store
from inflight.server.batch.temp_file import TempFile
from inflight.server.errors import ApiError, invalid
from inflight.server.tenants import Tenant

LONGEST_NAME = 255  # characters
_ABSENT = (errno.ENOENT, errno.EISDIR)
_BARRED = (errno.EACCES, errno.EPERM, errno.ELOOP)  # to ask again would not help

log = logging.getLogger(__name__)


class Unreadable(LookupError):
    """The content of a file is not what was stored, and will not be. code: a short name for machines."""

    def __init__(self, code: str, sentence: str):
        super().__init__(sentence)
        self.code = code


class Upload(Protocol):
    """An upload on its way in. `filename` and `purpose` are known when `content` has ended."""

    filename: str | None
    purpose: str | None

    def content(self) -> AsyncIterator[bytes]:
        """Raises ApiError where it breaks off or is no upload."""
        ...


class Files:
    def __init__(
        self,
        data: DataDirectory,
        store: Store,
        quotas: Quotas,
        *,
        most_bytes: int,
        now: Callable[[], float] = time.time,
    ):
        """most_bytes: of one upload. now: seconds of the wall clock."""
        self._data, self._store, self._quotas, self._now = data, store, quotas, now
        self.most_bytes = most_bytes

    def temp_file(self, file_id: str) -> TempFile:
        """A new file, which the store knows is being written. Raises OSError."""
        return TempFile(self._data, file_id)

    async def receive(self, tenant: Tenant, upload: Upload) -> StoredFile:
        """Stores an upload; one that breaks off leaves nothing. Raises ApiError."""
        with storage_told():
            stored = await self._store.usage(tenant.name)
            with self._quotas.intake(tenant, stored) as intake:
                file, temp_file = await self._receive(tenant, upload, intake)
        await self.publish([temp_file])  # it counts as stored now, and no more as on its way
        return file

    async def _receive(self, tenant: Tenant, upload: Upload, intake: Intake) -> tuple[StoredFile, TempFile]:
        file_id = new_file_id()
        await self._store.begin_files([file_id])
        temp_file = await asyncio.to_thread(self.temp_file, file_id)
        sealed = False
        try:
            async for piece in upload.content():
                if temp_file.bytes + len(piece) > self.most_bytes:
                    raise too_large(self.most_bytes)
                intake.take(len(piece))
                await asyncio.to_thread(temp_file.write, piece)
            purpose, name = _purpose(upload.purpose), _name(upload.filename)
            if temp_file.bytes == 0:
                raise invalid("The file is empty; give one with at least one line.", "file", "empty_file")
            await asyncio.to_thread(temp_file.seal)
            sealed = True
            file = self.described(temp_file, tenant.name, name, purpose)
            await self._add(file, tenant)
        except BaseException as error:
            # Cancelled behind `seal`, the row may be on its way; if it is not, the next start removes the content.
            if not sealed or isinstance(error, Exception):
                await asyncio.shield(self.abandon([temp_file]))
            raise
        return file, temp_file

    async def _add(self, file: StoredFile, tenant: Tenant) -> None:
        try:
            await self._store.add_file(file, self._quotas.of(tenant))
        except OverQuota as over:
            raise self._quotas.refusal(tenant, over.args[0]) from None

    async def publish(self, temp_files: Iterable[TempFile]) -> None:
        """After their rows were committed. What fails is found in partial/, and done at the next start."""
        for temp_file in temp_files:
            try:
                await asyncio.to_thread(temp_file.publish)
            except FileNotFoundError:  # its tenant has deleted it
                continue
            except OSError as error:
                log.warning("%s stays in partial/ until the next start: %s", temp_file.id, storage_sentence(error))

    async def abandon(self, temp_files: Collection[TempFile]) -> None:
        """Instead of rows."""
        for temp_file in temp_files:
            await asyncio.to_thread(temp_file.discard)  # of a large file that takes its time
        await self._forget([temp_file.id for temp_file in temp_files])

    async def _forget(self, ids: Iterable[str]) -> None:
        """What has no content any more; where the disk refuses, the next start does it."""
        with contextlib.suppress(OSError):
            await self._store.forget(ids)

    def described(self, temp_file: TempFile, tenant: str, name: str, purpose: str) -> StoredFile:
        return StoredFile(
            id=temp_file.id,
            tenant=tenant,
            filename=name,
            purpose=purpose,
            bytes=temp_file.bytes,
            created_at=int(self._now()),
        )

    async def retrieve(self, tenant: Tenant, file_id: str) -> StoredFile:
        """Raises ApiError 404."""
        try:
            with storage_told():
                return await self._store.file(file_id, tenant.name)
        except Missing:
            raise no_file(file_id) from None

    async def open(self, tenant: Tenant, file_id: str) -> tuple[StoredFile, BufferedReader]:
        """The content, from the beginning. Stays readable if the file is deleted meanwhile. Raises ApiError 404, or 409
        where it is not what was stored."""
        file = await self.retrieve(tenant, file_id)
        with storage_told():
            try:
                return file, await asyncio.to_thread(self.opened, file)
            except Unreadable as fault:
                status = 404 if fault.code == "content_missing" else 409
                sentence = f"{fault}; delete the file, or ask the operator to restore it."
                raise ApiError(status, sentence, code=fault.code) from None

    def opened(self, file: StoredFile, *, checked: bool = True) -> BufferedReader:
        """The content, from the beginning; waits. checked: only with the length that was stored. Raises Unreadable, or
        OSError where the disk refuses."""
        content_of = f"The content of the file {file.id}"
        try:
            content = self._found(file.id)
        except OSError as error:
            if error.errno in _ABSENT:
                sentence = f"{content_of} ({file.bytes} bytes) is gone from the data directory"
                raise Unreadable("content_missing", sentence) from None
            if error.errno in _BARRED:
                raise Unreadable("content_damaged", f"{content_of} cannot be read ({error.strerror})") from None
            raise
        there = os.fstat(content.fileno()).st_size
        if checked and there != file.bytes:
            content.close()
            sentence = f"{content_of} is damaged: it has {there} bytes, but {file.bytes} were stored"
            raise Unreadable("content_damaged", sentence)
        return content

    def _found(self, file_id: str) -> BufferedReader:
        place = self._data.files / file_id
        for path in (place, self._data.partial / file_id):  # a row is there before its content has taken its place
            with contextlib.suppress(FileNotFoundError):
                return path.open("rb")
        return place.open("rb")  # it took its place between two looks

    async def page(
        self, tenant: Tenant, *, after: str | None, limit: int, purpose: str | None, descending: bool
    ) -> tuple[list[StoredFile], bool]:
        """Files, and whether there are more. Raises ApiError 404 for an unknown `after`."""
        try:
            with storage_told():
                found = await self._store.files(
                    tenant.name, after=after, limit=limit + 1, purpose=purpose, descending=descending
                )
        except Missing:
            raise no_file(after, "after") from None
        return found[:limit], len(found) > limit

    async def delete(self, tenant: Tenant, file_id: str) -> None:
        """Also on a full disk. Raises ApiError: 404, or 409 while a job that has not ended reads it."""
        try:
            with storage_told():
                await self._store.delete_file(file_id, tenant.name)
        except Missing:
            raise no_file(file_id) from None
        except InUse as user:
            raise ApiError(
                409,
                f"The file is the input of the job {user.args[0]}, which has not ended; cancel it, or wait.",
                code="file_in_use",
            ) from None
        # A crash before the end leaves content that the store knows to be deleted, and the next start removes it.
        if await asyncio.to_thread(self._remove, file_id):
            await self._forget([file_id])
        await self._store.restore_reserve()

    def _remove(self, file_id: str) -> bool:
        """Whether it is gone."""
        try:
            # In the order in which content moves, so that none slips through between two looks.
            for folder in (self._data.partial, self._data.files):
                (folder / file_id).unlink(missing_ok=True)
        except OSError as error:
            log.warning(
                "the content of %s cannot be removed until the next start: %s", file_id, storage_sentence(error)
            )
            return False
        return True


def too_large(most_bytes: int) -> ApiError:
    most = f"{most_bytes / 2**20:g} MiB"
    return ApiError(413, f"The file is larger than {most}; split it.", param="file", code="file_too_large")


def no_file(file_id: object, param: str | None = None) -> ApiError:
    return ApiError(
        404, f"There is no file {shortened(str(file_id))!r}; list your files.", param=param, code="not_found"
    )


def _purpose(purpose: str | None) -> str:
    if purpose is None:
        raise invalid('The upload has no purpose; give "batch".', "purpose", "missing_field")
    if purpose != "batch":
        raise invalid(f'purpose is {shortened(purpose)!r}; this server takes files for "batch" only.', "purpose")
    return purpose


def _name(filename: str | None) -> str:
    if not filename:
        raise invalid("The upload has no file; give one as the form field `file`.", "file", "missing_field")
    return filename[:LONGEST_NAME]
