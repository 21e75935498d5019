"""Stored parts of an input: items that it names by their ids, and the history of the response that it continues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Raw, Struct

from inflight.counted import shortened
from inflight.server.errors import ApiError, invalid
from inflight.server.ingress.bodies import BodyLease
from inflight.server.openai.responses.schema import PREFIX
from inflight.server.openai.responses.store import NO_HISTORY, Responses, previous_of, too_long
from inflight.server.preprocessing.pool import SHORT_BYTES
from inflight.server.tenants import Tenant

MAX_RESPONSES = 256  # that one input names items of: each is read
_MARK = b"item_reference"


class Reference(NamedTuple):
    """An item of the input that names one of an earlier response. number: its index in the input."""

    number: int
    item_id: str

    @property
    def response_id(self) -> str:
        """Ids are those of the response, with the kind of the item before it and its number behind it."""
        return PREFIX + self.item_id.partition("_")[2].rpartition("_")[0]


class _Named(Struct):
    type: Any = None
    id: Any = None


class _Input(Struct):
    input: list[_Named]


class _Item(Struct):
    id: str


_INPUT = msgspec.json.Decoder(_Input)
_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_RAW_ITEMS = msgspec.json.Decoder(list[Raw])
_ITEM = msgspec.json.Decoder(_Item)
_encode = msgspec.json.Encoder().encode


def references_of(body: bytes) -> list[Reference]:
    """Return the references in a body. Raises ApiError where one has no id."""
    if _MARK not in body:
        return []
    try:
        items = _INPUT.decode(body).input
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    named = [Reference(number, item.id) for number, item in enumerate(items) if item.type == _MARK.decode()]
    for one in named:
        if not isinstance(one.item_id, str):
            place = f"input[{one.number}]"
            raise invalid(f"{place} names an item, but has no id that is a text; give it.", f"{place}.id")
    return named


async def found(
    references: Sequence[Reference], history: Callable[[str], Awaitable[bytes]], max_bytes: int
) -> dict[Reference, Raw]:
    """history: the items of a stored response by its id, as JSON; raises ApiError 404 where there is none. max_bytes:
    of all that is found, which one item may be many times. Raises ApiError."""
    by_response: dict[str, list[Reference]] = {}
    for one in references:
        by_response.setdefault(one.response_id, []).append(one)
    if len(by_response) > MAX_RESPONSES:
        raise invalid(
            f"input names items of {len(by_response):,} stored responses, and {MAX_RESPONSES} are allowed; go on from "
            "the last by previous_response_id, or send the items themselves.",
            "input",
        )
    items_by_reference: dict[Reference, Raw] = {}
    room = max_bytes
    for response_id, named in by_response.items():
        items = await _items_of(named[0], response_id, history)
        for one in named:
            if one.item_id not in items:
                raise _no_item(one)
            items_by_reference[one] = items[one.item_id].copy()  # so that the history goes
            room -= len(memoryview(items_by_reference[one]))
            if room < 0:
                raise _no_room(one)
    return items_by_reference


async def _items_of(named: Reference, response_id: str, history: Callable[[str], Awaitable[bytes]]) -> dict[str, Raw]:
    try:
        return {_ITEM.decode(raw).id: raw for raw in _RAW_ITEMS.decode(await history(response_id))}
    except ApiError as error:
        raise (_no_item(named) if error.status == 404 else error) from None


def with_items(body: bytes, items: Mapping[Reference, Raw]) -> bytes:
    """Return the body with these in the place of their names."""
    fields = _FIELDS.decode(body)
    given = _RAW_ITEMS.decode(fields["input"])
    for one, item in items.items():
        given[one.number] = item
    return _encode({**fields, "input": given})


def _no_item(named: Reference) -> ApiError:
    place = f"input[{named.number}]"
    return ApiError(
        404,
        f"{place} names the item {shortened(named.item_id)!r}, which no response here has: it was not stored, was "
        "deleted, or is too old; send the item itself.",
        param=f"{place}.id",
        code="item_not_found",
    )


def _no_room(named: Reference) -> ApiError:
    return ApiError(
        413,
        f"With the items that input names, up to input[{named.number}], the body is longer than a body may be "
        "(--max-body-mb); begin a new conversation.",
        param=f"input[{named.number}].id",
        code="body_too_large",
    )


T = TypeVar("T")


class StoredConversations:
    def __init__(self, stored: Callable[[], Responses], max_bytes: int):
        """Limit parts to max_bytes with their body. stored: raises ApiError while there is no store."""
        self._stored, self._max_bytes = stored, max_bytes

    async def with_named_items(self, body: bytes, tenant: Tenant, lease: BodyLease) -> bytes:
        """Return the body with those items in the place of their names. Raises ApiError."""
        references = await _aside(body, partial(references_of, body))
        if not references:
            return body
        items = await found(references, partial(self._stored().history, tenant), self._max_bytes - len(body))
        whole = await _aside(body, partial(with_items, body, items))
        await lease.grow(max(0, len(whole) - len(body)))
        return whole

    async def history_of(self, body: bytes, tenant: Tenant, lease: BodyLease) -> bytes:
        """Return the items that come before the body's. Raises ApiError."""
        previous = await _aside(body, partial(previous_of, body))
        if previous is None:
            return NO_HISTORY
        history = await self._stored().history(tenant, previous)
        if len(body) + len(history) > self._max_bytes:
            raise too_long(len(body) + len(history), self._max_bytes)
        await lease.grow(len(history))
        return history


async def _aside(body: bytes, work: Callable[[], T]) -> T:
    """Do some work, beside the event loop where the body is long."""
    return work() if len(body) <= SHORT_BYTES else await asyncio.to_thread(work)
