"""Bodies that wait for processes of one kind, and those processes at work.

Owners take turns by the time that their bodies took: no body waits behind all that another owner has sent. Bodies whose
client has gone are skipped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from inflight.engine.event_stream import set_outcome
from inflight.server.fair_line import FairLine
from inflight.server.preprocessing.child import ReadingProcess, ReadJob, StalledError
from inflight.server.preprocessing.wire import RENEW

EXPECTED_BYTES_A_SECOND = 1_000_000  # charged when a body is taken; corrected when it has been read


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

    @property
    def expected_seconds(self) -> float:
        return (len(self.job.body) + len(self.job.history)) / EXPECTED_BYTES_A_SECOND


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
        self._line = FairLine[WaitingBody]()
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
        for waiting in self._line.empty():
            waiting.outcome.cancel()
        for reader in self._readers:
            reader.drop()

    async def _work(self, reader: _Reader) -> None:
        try:
            while (waiting := self._line.next()) is not None:
                expected, began = waiting.expected_seconds, time.monotonic()
                self._line.take(expected)
                try:
                    set_outcome(waiting.outcome, await reader.outcome(waiting.job))
                finally:
                    self._line.charge(waiting.owner, time.monotonic() - began - expected)
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
