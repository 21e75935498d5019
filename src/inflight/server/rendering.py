"""Pages that cost much: rendered once for all that ask meanwhile, and never most of the time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

SHARE = 0.25  # of the time that may go into one page, however often it is asked for


class Rendering(Generic[T]):
    """Renders a page for all requests that came before the rendering began."""

    def __init__(self, render: Callable[[], Awaitable[T]]):
        self._render = render
        self._next: asyncio.Task[T] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._not_before = 0.0

    async def __call__(self) -> T:
        if self._next is None:
            self._next = asyncio.ensure_future(self._rendered())
        return await asyncio.shield(self._next)

    async def _rendered(self) -> T:
        async with self._one_at_a_time:
            await asyncio.sleep(self._not_before - time.monotonic())
            self._next = None  # who comes from here on is too late for this one
            began = time.monotonic()
            try:
                return await self._render()
            finally:
                ended = time.monotonic()
                self._not_before = ended + (ended - began) * (1 / SHARE - 1)
