"""A worker's messages, received in the engine's process: answers in their order, and ended transfers in between.

Knows messages, the pipe that they come over, and how long an answer is waited for; not what was asked.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

from inflight.core.types.plan import Transferred
from inflight.execution.parallel.faults import WorkerFault
from inflight.execution.parallel.messages import Copied, Failed, FromWorker, decode_from_worker

Message = TypeVar("Message", bound=FromWorker)


class Mailbox:
    def __init__(self, rank: int, pipe: Connection, end: Callable[[], str]) -> None:
        """end(): what has become of the worker whose pipe is closed."""
        self._rank, self._pipe, self._end = rank, pipe, end
        self._answers = deque[FromWorker]()  # that came while transfers alone were asked for
        self._ended: list[Transferred] = []

    def receive(self, kind: type[Message], seconds: float) -> Message:
        """Its next answer. Raises WorkerFault where that is another one, or none comes within so many seconds."""
        last = time.monotonic() + seconds
        while not self._answers:
            if not self._hears(max(0.0, last - time.monotonic())):
                raise WorkerFault(f"Rank {self._rank} has not answered for {seconds:g} s.")
        message = self._answers.popleft()
        if not isinstance(message, kind):
            raise WorkerFault(f"Rank {self._rank} says {type(message).__name__} where {kind.__name__} was due.")
        return message

    def ended(self) -> list[Transferred]:
        """Return transfers that the worker has reported since the last call. Raises WorkerFault where it is gone."""
        while self._hears(0.0):
            pass
        ended, self._ended = self._ended, []
        return ended

    def _hears(self, seconds: float) -> bool:
        """Whether it says something within so many seconds. Raises WorkerFault."""
        try:
            if not self._pipe.poll(seconds):
                return False
            message = decode_from_worker(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise WorkerFault(f"Rank {self._rank} {self._end()}.") from None
        if isinstance(message, Failed):
            raise WorkerFault(f"Rank {self._rank} failed: {message.sentence}", message.by_peer)
        if isinstance(message, Copied):
            self._ended += message.ended
        else:
            self._answers.append(message)
        return True
