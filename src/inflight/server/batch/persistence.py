"""Storage that is asked until it gives in: a full disk pauses batch jobs, it never ends them.

Knows retries and why jobs are paused; not what is read or written. A bug is no full disk: it is told at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from inflight.server.batch.faults import storage_sentence

T = TypeVar("T")

TELL_SECONDS = 60.0  # between two lines of the log about the same trouble

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pause:
    """Why jobs do not go on. since: whole seconds of the wall clock."""

    reason: str
    since: int


class InputGone(LookupError):
    """The content of a job's input file is no longer there, or not what was stored; to ask again would not help."""


class Persistence:
    """`changed` is set when a pause ends."""

    def __init__(self, *, retry_seconds: float = 5.0, now: Callable[[], float] = time.time):
        self.changed = asyncio.Event()
        self._retry_seconds, self._now = retry_seconds, now
        self._stuck: dict[object, Pause] = {}
        self._told_at = -TELL_SECONDS  # seconds of the monotonic clock
        self._pause_told = False

    @property
    def paused(self) -> Pause | None:
        """While anything that must be read or written cannot be."""
        return next(iter(self._stuck.values()), None)

    async def durably(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do it, and do it again until the storage gives in. Raises whatever is no OSError, at once."""
        token = object()
        try:
            while True:
                try:
                    result = await work()
                except OSError as error:
                    self._stuck.setdefault(token, Pause(storage_sentence(error), int(self._now())))
                    self._tell_pause(storage_sentence(error))
                else:
                    self._tell_end(token)
                    return result
                await self.wait()
        finally:
            if self._stuck.pop(token, None) is not None:
                self.changed.set()

    async def wait(self) -> None:
        """Between two tries."""
        await asyncio.sleep(self._retry_seconds)

    def _tell_pause(self, sentence: str) -> None:
        """One line for all that wait, now and then."""
        if time.monotonic() - self._told_at >= TELL_SECONDS:
            self._told_at, self._pause_told = time.monotonic(), True
            log.error("batch jobs are paused, %d reads or writes wait: %s", len(self._stuck), sentence)

    def _tell_end(self, token: object) -> None:
        if self._pause_told and set(self._stuck) <= {token}:
            self._pause_told = False
            log.warning("batch jobs go on: the data directory can be read and written again")
