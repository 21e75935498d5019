"""Stored responses: a row each in the database, with the items of the whole conversation before it, so that it stands
for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Raw, Struct

from inflight.counted import shortened
from inflight.server.errors import ApiError
from inflight.server.jobs.clock import StoreClock
from inflight.server.jobs.database import Database
from inflight.server.jobs.storage import StorageError, damaged_database
from inflight.server.openai.responses.schema import PREFIX
from inflight.server.tenants import Tenant

T = TypeVar("T")
_ITEM_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
_ROW_BYTES = 512  # that a row takes beside its JSON, with its entries in indexes


class _Output(Struct):
    id: str
    output: list[Raw]


_ITEMS = msgspec.json.Decoder(list[dict[str, Any]])
_OUTPUT = msgspec.json.Decoder(_Output)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """response, input_items: JSON text. due: seconds of the clock when it is removed."""

    tenant: str
    id: str
    due: float
    response: str
    input_items: str

    @classmethod
    def of(cls, row: sqlite3.Row) -> Self:
        """Return the response of a row. Raises ValueError or TypeError where a value is of another kind."""
        return msgspec.convert({name: row[name] for name in cls.__dataclass_fields__}, cls)

    @property
    def size(self) -> int:
        """Bytes that it takes of what its tenant may store."""
        return _ROW_BYTES + len(self.response.encode()) + len(self.input_items.encode())

    def check(self) -> None:
        """Refuse JSON that is not what was stored. Raises ValueError."""
        if self._output().id != self.id:
            raise ValueError("the id of a response")
        self._items()

    def listed(self) -> list[dict[str, Any]]:
        """Return the items of its input, each with an id. Raises ValueError."""
        own = self.id.removeprefix(PREFIX)
        return [
            {"id": f"{_ITEM_PREFIXES.get(item['type'], 'item')}_{own}_input{number}", **item}
            for number, item in enumerate(self._items())
        ]

    def history(self) -> bytes:
        """Return the items before the input of a response that continues it: JSON, a list. Raises ValueError."""
        return _encode([*self.listed(), *self._output().output])

    def _items(self) -> list[dict[str, Any]]:
        return _read(_ITEMS, self.input_items)

    def _output(self) -> _Output:
        return _read(_OUTPUT, self.response)


def _read(decoder: msgspec.json.Decoder[T], text: str) -> T:
    try:
        return decoder.decode(text)
    except msgspec.MsgspecError as error:  # some of them are no ValueErrors
        raise ValueError(str(error)) from None


NOT_STORED = b""  # no history, not even an empty one: a body may ask for nothing that is stored
NO_HISTORY = b"[]"
MAX_ID = 512  # characters, as bodies have it
_CLEANING_SECONDS = 3600.0
_INSERT = "INSERT INTO responses (tenant, id, due, response, input_items, bytes) VALUES (?, ?, ?, ?, ?, ?)"
_ONE = "tenant = ? AND id = ?"


class Responses:
    """Every method raises ApiError: StorageError where the disk refuses, 404 where the tenant has no such response."""

    def __init__(self, database: Database, clock: StoreClock, *, max_mb: float, days: float):
        """max_mb: MiB of each tenant that has no limit of its own. days: that a response is stored, of the clock's."""
        self._database, self._clock, self._max_mb, self._seconds = database, clock, max_mb, days * 86_400
        self._cleaning: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Remove what is due now and then; within an event loop."""
        self._cleaning = asyncio.ensure_future(self._clean())

    async def stop(self) -> None:
        if self._cleaning is not None:
            self._cleaning.cancel()
            await asyncio.wait([self._cleaning])

    async def store(self, tenant: Tenant, response_id: str, response: bytes, input_items: bytes) -> None:
        """Store it in the place of one of the same id; the oldest of the tenant go while it stores too much.

        Args:
            response, input_items: JSON.
        """
        max_bytes = int((self._max_mb if tenant.max_responses_mb is None else tenant.max_responses_mb) * 2**20)
        due, texts = self._clock.now() + self._seconds, (response.decode(), input_items.decode())
        one = StoredResponse(tenant=tenant.name, id=response_id, due=due, response=texts[0], input_items=texts[1])
        if one.size > max_bytes:
            raise ApiError(
                413,
                f"The response takes {one.size:,} bytes with its input, and what you may keep is {max_bytes:,}; set "
                "store to false, or begin a new conversation.",
                param="store",
                code="storage_quota_exceeded",
            )

        def work(connection: sqlite3.Connection) -> None:
            self._clock.save(connection)
            self._remove_due(connection)
            connection.execute(f"DELETE FROM responses WHERE {_ONE}", (one.tenant, one.id))
            connection.execute(_INSERT, (*astuple(one), one.size))
            _remove_oldest(one.tenant, max_bytes, connection)

        await self._database.write(work)

    async def history(self, tenant: Tenant, response_id: str) -> bytes:
        """Return the items before the input that continues it, as JSON."""
        with _damage_of(response_id):
            return (await self._found(tenant, response_id, "previous_response_id")).history()

    async def retrieve(self, tenant: Tenant, response_id: str) -> bytes:
        """Return the response as JSON."""
        with _damage_of(response_id):
            stored = await self._found(tenant, response_id)
            stored.check()
            return stored.response.encode()

    async def input_items(
        self, tenant: Tenant, response_id: str, *, after: str | None, limit: int, descending: bool
    ) -> tuple[list[dict[str, Any]], bool]:
        """Return the items of its input, and whether there are more."""
        with _damage_of(response_id):
            items = (await self._found(tenant, response_id)).listed()
        if descending:
            items.reverse()
        if after is not None:
            index = next((number for number, item in enumerate(items) if item["id"] == after), None)
            if index is None:
                raise ApiError(
                    404,
                    f"The response {shortened(response_id)!r} has no input item {shortened(after)!r}; "
                    "list its items without after.",
                    param="after",
                    code="not_found",
                )
            items = items[index + 1 :]
        return items[:limit], len(items) > limit

    async def delete(self, tenant: Tenant, response_id: str) -> None:
        def work(connection: sqlite3.Connection) -> None:
            self._remove_due(connection)
            if not connection.execute(f"DELETE FROM responses WHERE {_ONE}", (tenant.name, response_id)).rowcount:
                raise _no_response(response_id, None)

        await self._database.write_on_full_disk(work)

    async def _found(self, tenant: Tenant, response_id: str, param: str | None = None) -> StoredResponse:
        """Return the row. Raises ValueError or TypeError where it is damaged."""
        query = f"SELECT * FROM responses WHERE {_ONE} AND due > ?"

        def work(connection: sqlite3.Connection) -> StoredResponse:
            row = connection.execute(query, (tenant.name, response_id, self._clock.now())).fetchone()
            if row is None:
                raise _no_response(response_id, param)
            return StoredResponse.of(row)

        return await self._database.read(work)

    def _remove_due(self, connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM responses WHERE due <= ?", (self._clock.now(),))

    async def _clean(self) -> None:
        while True:
            with contextlib.suppress(StorageError):  # a later time does it
                await self._database.write_on_full_disk(self._remove_due)
            await asyncio.sleep(_CLEANING_SECONDS)


def _remove_oldest(tenant: str, max_bytes: int, connection: sqlite3.Connection) -> None:
    (used,) = connection.execute("SELECT bytes FROM response_usage WHERE tenant = ?", (tenant,)).fetchone()
    rows = connection.execute("SELECT number, bytes FROM responses WHERE tenant = ? ORDER BY number", (tenant,))
    old = []
    while used > max_bytes and (row := rows.fetchone()) is not None:
        used -= row["bytes"]
        old.append((row["number"],))
    connection.executemany("DELETE FROM responses WHERE number = ?", old)


class _Continued(Struct):
    previous_response_id: str | None = None


_CONTINUED = msgspec.json.Decoder(_Continued)


def previous_of(body: bytes) -> str | None:
    """Return the response that a body continues. Mistakes in a body are left to its decoder."""
    try:
        previous = _CONTINUED.decode(body).previous_response_id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return previous if previous is not None and len(previous) <= MAX_ID else None


def too_long(size: int, max_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"The conversation has {size:,} bytes with that of the previous response, and a body may have {max_bytes:,} "
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
def _damage_of(response_id: str) -> Iterator[None]:
    """Raise StorageError where what is read is not what was stored."""
    try:
        yield
    except (ValueError, TypeError):
        raise damaged_database(f"the response {response_id[:100]} is not what was stored") from None
