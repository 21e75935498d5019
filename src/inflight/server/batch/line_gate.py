"""Admit lines together, or a suspect line alone, so that an end of the process while it runs is its own doing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class LineGate:
    """A line that is to be alone comes before those that are not; lines that are to be alone come one by one."""

    def __init__(self) -> None:
        self._inside = self._waiting_alone = 0
        self._is_alone = False
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def enter(self, *, alone: bool) -> AsyncIterator[None]:
        """Wait until the line may be asked; it is being asked until the end of the context."""
        self._waiting_alone += alone
        try:
            while not self._may_enter(alone):
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._waiting_alone -= alone
            self._changed.set()
        self._inside += 1
        self._is_alone = alone
        try:
            yield
        finally:
            self._inside -= 1
            self._is_alone = False
            self._changed.set()

    def _may_enter(self, alone: bool) -> bool:
        if alone:
            return not self._inside
        return not self._is_alone and not self._waiting_alone
