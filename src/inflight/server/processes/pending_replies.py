"""Replies that another process owes, each to its question, by number."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

from inflight.engine.event_stream import set_outcome

R = TypeVar("R")


class PendingReplies(Generic[R]):
    """Replies of one event loop. A reply may be an exception, which is raised where it is awaited."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[R]] = {}
        self._last: tuple[R | BaseException] | None = None  # of all questions from now on

    def __len__(self) -> int:
        return len(self._pending)

    async def ask(self, put: Callable[[int], None], seconds: float | None = None) -> R:
        """Return the reply to a question.

        Args:
            put: Sends the question, with its number.
            seconds: After which TimeoutError is raised; None: it is awaited for ever.
        """
        number, reply = next(self._numbers), asyncio.get_running_loop().create_future()
        self._pending[number] = reply
        try:
            if self._last is None:
                put(number)
            else:
                set_outcome(reply, self._last[0])
            return await asyncio.wait_for(reply, seconds)
        finally:
            del self._pending[number]

    def came(self, number: int, reply: R | BaseException) -> None:
        """Take a reply; it has no effect if none waits for it any more."""
        if (pending := self._pending.get(number)) is not None:
            set_outcome(pending, reply)

    def end(self, reply: R | BaseException) -> None:
        """Reply the same to all that were asked, and to all that are asked later: the other process has ended."""
        self._last = (reply,)
        for pending in self._pending.values():
            set_outcome(pending, reply)
