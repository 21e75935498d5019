"""Bodies that wait for processes of one kind, and those processes at work.

Owners take turns: no body waits behind all that another owner has sent. Bodies whose client has gone are skipped.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from inflight.engine.event_stream import set_outcome
from inflight.server.preprocessing.child import ReadingProcess, ReadJob, StalledError
from inflight.server.preprocessing.wire import RENEW


class PreprocessingError(RuntimeError):
    """The processes cannot be started; the sentence says why."""


@dataclass(slots=True, eq=False)
class WaitingBody:
    owner: str
    job: ReadJob
    outcome: asyncio.Future[bytes]

    @property
    def is_over(self) -> bool:
        """Return whether its client has gone, or its outcome is known."""
        return self.outcome.done()


class _Line:
    """Bodies that wait, of each owner in turn."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[WaitingBody]] = {}  # the owner who is next first

    def put(self, waiting: WaitingBody) -> None:
        self._waiting.setdefault(waiting.owner, deque()).append(waiting)

    def take(self) -> WaitingBody | None:
        """Remove and return the next body; None when no client waits."""
        while self._waiting:
            owner = next(iter(self._waiting))
            bodies = self._waiting.pop(owner)
            first = bodies.popleft()
            if bodies:
                self._waiting[owner] = bodies
            if not first.is_over:
                return first
        return None


class Lane:
    """Processes that read one body at a time each, and the line of bodies before them."""

    def __init__(
        self,
        start: Callable[[], Awaitable[ReadingProcess]],
        was_orphaned: Callable[[], Awaitable[bool]],
        processes: int,
    ):
        """Start processes when there are bodies for them.

        Args:
            start: Return a fresh process. Raises PreprocessingError, StalledError, OSError, EOFError.
            was_orphaned: Return whether a process ended with the one that forks, which says nothing about its body.
            processes: At work at once, at most.
        """
        self._line = _Line()
        self._readers = [_Reader(start, was_orphaned) for _ in range(processes)]
        self._idle = self._readers[::-1]  # the last one is taken next: processes that were never needed are not started
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, waiting: WaitingBody) -> None:
        self._line.put(waiting)
        if self._idle:
            task = asyncio.ensure_future(self._work(self._idle.pop()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        while (waiting := self._line.take()) is not None:
            waiting.outcome.cancel()
        for reader in self._readers:
            reader.drop()

    async def _work(self, reader: _Reader) -> None:
        try:
            while (waiting := self._line.take()) is not None:
                try:
                    set_outcome(waiting.outcome, await reader.outcome(waiting.job))
                finally:
                    waiting.outcome.cancel()  # where the lane was closed meanwhile
                    del waiting  # megabytes, until the next one comes
        finally:
            self._idle.append(reader)


class ProcessEnded(EOFError):
    """A body ended the process that read it. seconds: after which that was."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds


class _Reader:
    """One process after another."""

    def __init__(
        self, start: Callable[[], Awaitable[ReadingProcess]], was_orphaned: Callable[[], Awaitable[bool]]
    ) -> None:
        self._start, self._was_orphaned = start, was_orphaned
        self._process: ReadingProcess | None = None

    async def outcome(self, job: ReadJob) -> bytes | Exception:
        """Return an encoded outcome; or ProcessEnded where the body ended its process, StalledError where processes
        stood still twice, PreprocessingError where none can be started."""
        fault: Exception = StalledError()
        for _ in range(2):
            began = time.monotonic()
            try:
                return await self._read(job)
            except StalledError as error:
                self.drop()
                fault = error
            except PreprocessingError as error:
                return error
            except (OSError, EOFError):
                self.drop()
                fault = ProcessEnded(time.monotonic() - began)
                if not await self._was_orphaned():
                    break
        return fault

    def drop(self) -> None:
        """End the process; the next body gets a fresh one."""
        if self._process is not None:
            self._process.end()
        self._process = None

    async def _read(self, job: ReadJob) -> bytes:
        if self._process is not None and self._process.has_ended:  # since the last body
            self.drop()
        if self._process is None:
            self._process = await self._start()
        answer = await self._process.read(job)
        if answer[:1] == RENEW:
            self.drop()
        return answer[1:]
