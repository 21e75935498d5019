"""Calls that wait for a model: each gets it, or is told why not. Knows futures; not when a model is there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from inflight.engine.event_stream import set_outcome
from inflight.server.errors import ApiError
from inflight.server.served import ModelLease


class WaitingCalls:
    def __init__(self, names: Iterable[str]):
        self._lines: dict[str, list[asyncio.Future[ModelLease]]] = {name: [] for name in names}

    def has(self, name: str) -> bool:
        return bool(self._lines[name])

    def join(self, name: str) -> asyncio.Future[ModelLease]:
        call: asyncio.Future[ModelLease] = asyncio.get_running_loop().create_future()
        self._lines[name].append(call)
        return call

    def leave(self, name: str, call: asyncio.Future[ModelLease]) -> bool:
        """Whether it stood there still."""
        if call not in self._lines[name]:
            return False
        self._lines[name].remove(call)
        return True

    def take(self, name: str) -> list[asyncio.Future[ModelLease]]:
        """All that wait for it, who do so no more."""
        taken, self._lines[name] = self._lines[name], []
        return taken

    def refuse(self, name: str, error: ApiError) -> None:
        """All that wait for it, who do so no more."""
        for call in self.take(name):
            set_outcome(call, error)
