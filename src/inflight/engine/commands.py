"""Commands of any thread for the engine, which run one at a time with the engine's lock.

A command runs at once in its sender's thread while the engine computes a step or sleeps, since the scheduler is not in
use then; otherwise the engine's thread runs it before it computes. Large commands take longer than an event loop can
wait: only the engine's thread or a worker thread runs them.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from types import TracebackType

COMMAND_SECONDS = 0.005  # for commands at a time; the rest waits for the next round or the next sender

Command = Callable[[], None]
Inbox = queue.SimpleQueue[Command]


class CommandQueue:
    """Queued commands and the engine's lock.

    Attributes:
        lock: Held while the engine or a command changes the scheduler's state.
        wake: Ends the engine's sleep when there is a command.
        unlocked: A context in which the engine's thread leaves the lock to others.
    """

    def __init__(self, failed: Callable[[BaseException], None]):
        """Create an empty queue. failed: called with the lock held, with the exception of a command."""
        self.lock = threading.Lock()
        self.wake = threading.Event()
        self.unlocked = _Unlocked(self)
        self._failed = failed
        self._small: Inbox = queue.SimpleQueue()
        self._large: Inbox = queue.SimpleQueue()
        self._engine_waits = False  # for the lock
        self._has_ended = False

    def send(self, command: Command) -> None:
        """Run a command now if possible, and soon otherwise."""
        self._small.put(command)
        self.run()
        self.wake.set()

    def put_large(self, command: Command) -> None:
        """Queue a large command: call `run_large` in a worker thread, or wake the engine."""
        self._large.put(command)

    def run_large(self) -> None:
        """Run queued commands, large ones first, in a worker thread."""
        self.run(large=True)
        self.run()  # that came meanwhile
        self.wake.set()

    def run(self, large: bool = False) -> None:
        """Run queued commands unless another thread has the lock, which looks again after it releases it.

        It ends soon, since the caller has other work; the engine runs the rest.
        """
        inbox, end = self._large if large else self._small, self._end()
        # Once the engine has stopped, a worker waits for the lock: an event loop that has it runs nothing large.
        while not inbox.empty() and time.monotonic() < end and self.lock.acquire(blocking=large and self._has_ended):
            try:
                self._drain(inbox, end)
            finally:
                self.lock.release()

    def run_locked(self) -> None:
        """Run queued commands in the engine's thread, which has the lock."""
        self.wake.clear()  # before the queues: a later command ends the sleep that may follow
        for inbox in (self._small, self._large):
            self._drain(inbox, self._end())
        if not (self._small.empty() and self._large.empty()):
            self.wake.set()  # the sender of the rest has set it already

    def end(self) -> None:
        """Run all commands without a limit from now on: the engine has stopped and runs none."""
        self._has_ended = True

    def _end(self) -> float:
        """Return the time until which commands may run."""
        return math.inf if self._has_ended else time.monotonic() + COMMAND_SECONDS

    def _drain(self, inbox: Inbox, end: float) -> None:
        """Run commands until the inbox is empty, the time is over, or the engine wants the lock; one at least."""
        while True:
            try:
                command = inbox.get_nowait()
            except queue.Empty:
                return
            try:
                command()
            except BaseException as error:  # it may run in a sender's thread, which is not to blame
                self._failed(error)
            if time.monotonic() >= end or self._engine_waits:
                return


class _Unlocked:
    """While entered by the engine's thread, other threads may have the lock."""

    def __init__(self, commands: CommandQueue):
        self._commands = commands

    def __enter__(self) -> None:
        self._commands.lock.release()
        self._commands.run()  # that came while the engine had the lock

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._commands._engine_waits = True
        self._commands.lock.acquire()
        self._commands._engine_waits = False
