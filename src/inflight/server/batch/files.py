"""Files of tenants: taken in, listed, given out, deleted. Content lies under the file's id; its name is only shown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO, Protocol

from inflight.server.batch.data import DataDirectory, Draft
from inflight.server.batch.faults import unavailable
from inflight.server.batch.records import StoredFile
from inflight.server.batch.store import InUse, Missing, Store
from inflight.server.errors import ApiError, invalid
from inflight.server.tenants import Tenant

LONGEST_NAME = 255  # characters


class Upload(Protocol):
    """An upload on its way in. `filename` and `purpose` are known when `content` has ended."""

    filename: str | None
    purpose: str | None

    def content(self) -> AsyncIterator[bytes]:
        """Raises ApiError where it breaks off or is no upload."""
        ...


class Files:
    def __init__(self, data: DataDirectory, store: Store, *, most_bytes: int, now: Callable[[], float] = time.time):
        """most_bytes: of one upload. now: seconds of the wall clock."""
        self._data, self._store, self._now = data, store, now
        self.most_bytes = most_bytes

    def path(self, file_id: str) -> Path:
        """Where a file's content lies. Only for ids that came out of the store."""
        return self._data.files / file_id

    def draft(self, file_id: str | None = None) -> Draft:
        """A new file; file_id as for `Draft`. Raises OSError."""
        return Draft(self._data, file_id)

    async def receive(self, tenant: Tenant, upload: Upload) -> StoredFile:
        """Stores an upload; one that breaks off leaves nothing. Raises ApiError."""
        try:
            draft = await asyncio.to_thread(self.draft)
        except OSError as error:
            raise unavailable(error) from None
        published = False
        try:
            async for piece in upload.content():
                if draft.bytes + len(piece) > self.most_bytes:
                    raise too_large(self.most_bytes)
                await asyncio.to_thread(draft.write, piece)
            purpose, name = _purpose(upload.purpose), _name(upload.filename)
            if draft.bytes == 0:
                raise invalid("The file is empty; give one with at least one line.", "file", "empty_file")
            await asyncio.to_thread(draft.publish)
            published = True
            file = self.described(draft, tenant.name, name, purpose)
            await self._store.add_file(file)
        except BaseException as error:
            # Cancelled behind `publish`, the row may still be on its way; if it is not, the next start sweeps the file.
            if not published or isinstance(error, Exception):
                draft.discard()
            if isinstance(error, OSError):
                raise unavailable(error) from None
            raise
        return file

    def described(self, draft: Draft, tenant: str, name: str, purpose: str) -> StoredFile:
        return StoredFile(
            id=draft.id, tenant=tenant, filename=name, purpose=purpose, bytes=draft.bytes, created_at=int(self._now())
        )

    async def retrieve(self, tenant: Tenant, file_id: str) -> StoredFile:
        """Raises ApiError 404."""
        try:
            return await self._store.file(file_id, tenant.name)
        except Missing:
            raise no_file(file_id) from None

    async def open(self, tenant: Tenant, file_id: str) -> tuple[StoredFile, BinaryIO]:
        """The content, from the beginning. Stays readable if the file is deleted meanwhile. Raises ApiError 404."""
        file = await self.retrieve(tenant, file_id)
        try:
            return file, await asyncio.to_thread(self.path(file.id).open, "rb")
        except FileNotFoundError:
            raise no_file(file_id) from None

    async def page(
        self, tenant: Tenant, *, after: str | None, limit: int, purpose: str | None, descending: bool
    ) -> tuple[list[StoredFile], bool]:
        """Files, and whether there are more. Raises ApiError 404 for an unknown `after`."""
        try:
            found = await self._store.files(
                tenant.name, after=after, limit=limit + 1, purpose=purpose, descending=descending
            )
        except Missing:
            raise no_file(after, "after") from None
        return found[:limit], len(found) > limit

    async def delete(self, tenant: Tenant, file_id: str) -> None:
        """Raises ApiError: 404, or 409 while a job that has not ended reads it."""
        try:
            await self._store.delete_file(file_id, tenant.name)
        except Missing:
            raise no_file(file_id) from None
        except InUse as user:
            raise ApiError(
                409,
                f"The file is the input of the job {user.args[0]}, which has not ended; cancel it, or wait.",
                code="file_in_use",
            ) from None
        except OSError as error:
            raise unavailable(error) from None
        # A crash before this line leaves content without a row, which the next start sweeps away.
        await asyncio.to_thread(self.path(file_id).unlink, missing_ok=True)


def too_large(most_bytes: int) -> ApiError:
    most = f"{most_bytes / 2**20:g} MiB"
    return ApiError(413, f"The file is larger than {most}; split it.", param="file", code="file_too_large")


def no_file(file_id: object, param: str | None = None) -> ApiError:
    return ApiError(404, f"There is no file {str(file_id)[:100]!r}; list your files.", param=param, code="not_found")


def _purpose(purpose: str | None) -> str:
    if purpose is None:
        raise invalid('The upload has no purpose; give "batch".', "purpose", "missing_field")
    if purpose != "batch":
        raise invalid(f'purpose is {purpose[:100]!r}; this server takes files for "batch" only.', "purpose")
    return purpose


def _name(filename: str | None) -> str:
    if not filename:
        raise invalid("The upload has no file; give one as the form field `file`.", "file", "missing_field")
    return filename[:LONGEST_NAME]
