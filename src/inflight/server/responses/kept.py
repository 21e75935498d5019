"""Stored responses as clients see them: kept, gone on from, looked at, deleted.

Knows for how long, how many bytes of each tenant, and the sentences; not the queries, nor what a conversation is.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from inflight.counted import shortened
from inflight.server.batch.clock import StoreClock
from inflight.server.batch.faults import DamagedDatabase, storage_told
from inflight.server.batch.store import Missing
from inflight.server.errors import ApiError
from inflight.server.responses.store import ResponseStore
from inflight.server.responses.stored import StoredResponse
from inflight.server.tenants import Tenant

NOT_STORED = b""  # no history, not even an empty one: a body may ask for nothing that is stored
NO_HISTORY = b"[]"
LONGEST_ID = 512  # characters, as bodies have it
_CLEANING_SECONDS = 3600.0


class KeptResponses(Protocol):
    """What answering asks. All raise ApiError."""

    async def keep(self, tenant: Tenant, response_id: str, response: bytes, input_items: bytes) -> None:
        """On return it survives the process. response, input_items: JSON."""

    async def history(self, tenant: Tenant, response_id: str) -> bytes:
        """What comes before the input that goes on from it: JSON, a list of items."""


class Responses:
    """`KeptResponses` over the store."""

    def __init__(self, store: ResponseStore, clock: StoreClock, *, max_mb: float, days: float):
        """max_mb: MiB of each tenant that has no limit of its own. days: that a response is kept, of the clock's."""
        self._store, self._clock, self._max_mb, self._seconds = store, clock, max_mb, days * 86_400
        self._cleaning: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Remove what is due now and then; within the event loop of the server."""
        self._cleaning = asyncio.ensure_future(self._clean())

    async def stop(self) -> None:
        if self._cleaning is not None:
            self._cleaning.cancel()
            await asyncio.wait([self._cleaning])

    async def keep(self, tenant: Tenant, response_id: str, response: bytes, input_items: bytes) -> None:
        time, most = self._clock.to_keep(), self._most_bytes(tenant)
        one = StoredResponse(
            tenant=tenant.name,
            id=response_id,
            due=time.seconds + self._seconds,
            response=response.decode(),
            input_items=input_items.decode(),
        )
        if one.size > most:
            raise ApiError(
                413,
                f"The response takes {one.size:,} bytes with its input, and what you may keep is {most:,}; set store "
                "to false, or begin a new conversation.",
                param="store",
                code="storage_quota_exceeded",
            )
        with storage_told():
            await self._store.add(one, most, time)

    async def history(self, tenant: Tenant, response_id: str) -> bytes:
        with _damage_told(response_id):
            return (await self._found(tenant, response_id, "previous_response_id")).history()

    async def retrieve(self, tenant: Tenant, response_id: str) -> bytes:
        """As JSON. Raises ApiError 404."""
        with _damage_told(response_id):
            stored = await self._found(tenant, response_id)
            stored.check()
            return stored.response.encode()

    async def input_items(
        self, tenant: Tenant, response_id: str, *, after: str | None, limit: int, descending: bool
    ) -> tuple[list[dict[str, Any]], bool]:
        """The items that it was asked with, and whether there are more. Raises ApiError 404."""
        with _damage_told(response_id):
            items = (await self._found(tenant, response_id)).listed()
        if descending:
            items.reverse()
        if after is not None:
            place = next((number for number, item in enumerate(items) if item["id"] == after), None)
            if place is None:
                raise ApiError(
                    404,
                    f"The response {shortened(response_id)!r} has no input item {shortened(after)!r}; "
                    "list its items without after.",
                    param="after",
                    code="not_found",
                )
            items = items[place + 1 :]
        return items[:limit], len(items) > limit

    async def delete(self, tenant: Tenant, response_id: str) -> None:
        """Raises ApiError 404."""
        try:
            with storage_told():
                await self._store.delete(response_id, tenant.name, self._clock.now())
        except Missing:
            raise _no_response(response_id, None) from None

    async def _found(self, tenant: Tenant, response_id: str, param: str | None = None) -> StoredResponse:
        try:
            return await self._store.response(response_id, tenant.name, self._clock.now())
        except Missing:
            raise _no_response(response_id, param) from None

    def _most_bytes(self, tenant: Tenant) -> int:
        return int((self._max_mb if tenant.max_responses_mb is None else tenant.max_responses_mb) * 2**20)

    async def _clean(self) -> None:
        while True:
            with contextlib.suppress(OSError):  # a later time does it
                await self._store.remove_due(self._clock.now())
            await asyncio.sleep(_CLEANING_SECONDS)


class _Continued(Struct):
    previous_response_id: str | None = None


_CONTINUED = msgspec.json.Decoder(_Continued)


def previous_of(body: bytes) -> str | None:
    """The response that a body goes on from. What is wrong with a body, its reader tells."""
    try:
        previous = _CONTINUED.decode(body).previous_response_id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return previous if previous is not None and len(previous) <= LONGEST_ID else None


def too_long(size: int, most: int) -> ApiError:
    return ApiError(
        413,
        f"The conversation has {size:,} bytes with that of the previous response, and a body may have {most:,} "
        "(--max-body-mb); begin a new one.",
        param="previous_response_id",
        code="body_too_large",
    )


def _no_response(response_id: str, param: str | None) -> ApiError:
    return ApiError(
        404,
        f"There is no response {shortened(response_id)!r} here: it was not stored, was deleted, or is too old; "
        f"{'ask for a new one' if param is None else 'send the whole conversation as input'}.",
        param=param,
        code="not_found" if param is None else "previous_response_not_found",
    )


@contextlib.contextmanager
def _damage_told(response_id: str) -> Iterator[None]:
    """Raises ApiError 507 where what is read is not what was stored."""
    with storage_told():
        try:
            yield
        except (ValueError, TypeError):
            raise DamagedDatabase(errno.EIO, f"the response {response_id[:100]} is not what was stored") from None
