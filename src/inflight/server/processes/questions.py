"""Questions of one kind to another process, by number, until they are answered or nobody is there who could.

Knows numbers and who waits; how a question is told, whoever asks says.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

from inflight.engine.event_stream import settle

A = TypeVar("A")


class Questions(Generic[A]):
    """Of one event loop. Answers may be exceptions, which are raised where they are waited for."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[A]] = {}

    async def ask(self, tell: Callable[[int], None], seconds: float | None = None) -> A:
        """tell: puts the question, by its number. Raises TimeoutError after so many seconds."""
        number = next(self._numbers)
        self._waiting[number] = answer = asyncio.get_running_loop().create_future()
        tell(number)
        try:
            return await asyncio.wait_for(answer, seconds)
        finally:
            del self._waiting[number]

    def answered(self, number: int, answer: A | BaseException) -> None:
        """Nothing, where nobody waits for it any more."""
        if (waiting := self._waiting.get(number)) is not None:
            settle(waiting, answer)

    def end(self, answer: A | BaseException) -> None:
        """All that are open are answered so: there is nobody left to ask."""
        for waiting in self._waiting.values():
            settle(waiting, answer)
