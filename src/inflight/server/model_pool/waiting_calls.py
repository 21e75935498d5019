"""Calls that wait for a model, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from inflight.engine.event_stream import set_outcome
from inflight.server.errors import ApiError
from inflight.server.model_pool.pool_model import PoolLease


class WaitingCalls:
    def __init__(self, names: Iterable[str]):
        self._lines: dict[str, list[asyncio.Future[PoolLease]]] = {name: [] for name in names}

    def has(self, name: str) -> bool:
        return bool(self._lines[name])

    def join(self, name: str) -> asyncio.Future[PoolLease]:
        call: asyncio.Future[PoolLease] = asyncio.get_running_loop().create_future()
        self._lines[name].append(call)
        return call

    def leave(self, name: str, call: asyncio.Future[PoolLease]) -> bool:
        """Remove a call; return whether it waited still."""
        if call not in self._lines[name]:
            return False
        self._lines[name].remove(call)
        return True

    def take(self, name: str) -> list[asyncio.Future[PoolLease]]:
        """Remove all that wait for the model, and return them."""
        taken, self._lines[name] = self._lines[name], []
        return taken

    def refuse(self, name: str, error: ApiError) -> None:
        """Remove all that wait for the model, and raise the error in them."""
        for call in self.take(name):
            set_outcome(call, error)
