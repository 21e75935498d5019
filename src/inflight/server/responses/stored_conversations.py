"""Stored items and histories that a body refers to; read under its lease, they count as if they had been sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from inflight.server.ingress.body_budget import BodyLease
from inflight.server.preprocessing.pool import SHORT_BYTES
from inflight.server.responses.referred import found, references_of, with_items
from inflight.server.responses.store import NO_HISTORY, Responses, previous_of, too_long
from inflight.server.tenants import Tenant

T = TypeVar("T")


class StoredConversations:
    def __init__(self, stored: Callable[[], Responses], max_bytes: int):
        """stored: raises ApiError while there is no store. max_bytes: of a body and what is read for it."""
        self._stored, self._max_bytes = stored, max_bytes

    async def with_named_items(self, body: bytes, tenant: Tenant, lease: BodyLease) -> bytes:
        """The body with those items in the place of their names. Raises ApiError."""
        references = await _aside(body, partial(references_of, body))
        if not references:
            return body
        items = await found(references, partial(self._stored().history, tenant), self._max_bytes - len(body))
        whole = await _aside(body, partial(with_items, body, items))
        await lease.grow(max(0, len(whole) - len(body)))
        return whole

    async def history_of(self, body: bytes, tenant: Tenant, lease: BodyLease) -> bytes:
        """The items that come before the body's. Raises ApiError."""
        previous = await _aside(body, partial(previous_of, body))
        if previous is None:
            return NO_HISTORY
        history = await self._stored().history(tenant, previous)
        if len(body) + len(history) > self._max_bytes:
            raise too_long(len(body) + len(history), self._max_bytes)
        await lease.grow(len(history))
        return history


async def _aside(body: bytes, work: Callable[[], T]) -> T:
    """Beside the event loop, where the body is long."""
    return work() if len(body) <= SHORT_BYTES else await asyncio.to_thread(work)
