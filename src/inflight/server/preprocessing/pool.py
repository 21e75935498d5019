"""The server's side of preprocessing: the processes that read bodies, and the bodies that wait for them.

One process reads short bodies and several read long ones, so that a question does not wait behind a document. All are
forked from a first process, which has loaded the tokenizer and the template. A process that has kept memory of a body
is replaced by a fresh one. One that runs away ends itself by its limits; one that is stopped, or waits for a lock, is
found by its CPU time, which does not grow, while even a busy machine leaves it some every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from inflight.counted import printable
from inflight.cpus import usable_cpus
from inflight.engine.event_stream import set_outcome
from inflight.limited_process import LENGTH_BYTES, cpu_ticks, receive, send
from inflight.server.common.prepared import EndpointName, Limits, Prepared, PreparedAnswer
from inflight.server.errors import ApiError, invalid
from inflight.server.ignored_field_log import IgnoredFieldLog
from inflight.server.openai.completions import is_little
from inflight.server.preprocessing.worker import (
    ABORTED,
    LONG,
    PID_BYTES,
    READY,
    RENEW,
    SHORT,
    Outcome,
    Preprocessor,
    Refused,
    Setup,
    decode_outcome,
    encode,
    job_frame,
    memory_of_body,
    out_of_memory,
)
from inflight.text import TextFiles

INLINE = 1 << 12  # bytes of a completion's body that is read in place, in a millisecond or so
SHORT_BYTES = 1 << 15  # bytes of a body that goes to the quick process
CPU_SECONDS = 10.0  # of one body; a megabyte of text takes one or two
START_SECONDS = 60.0
MAX_LONG_PROCESSES = 4  # that read long bodies at once
LOOK_SECONDS = 1.0  # between two looks at a process's CPU time
STALLED_LOOKS = 10  # in a row without any CPU time; then the process has stalled
MAX_LOOKS = 300  # at a process with one job, whatever its CPU time says

T = TypeVar("T")

log = logging.getLogger("inflight.server")


class PreprocessingPool:
    def __init__(self, long_processes: int | None = None) -> None:
        """Start the first process, whose modules take a third of a second to load.

        Args:
            long_processes: That read long bodies at once. None: half of the cores, from 2 to 4; long bodies have the
                lowest priority on them.
        """
        self._long_processes = long_processes or max(2, min(MAX_LONG_PROCESSES, usable_cpus().paid_for // 2))
        self._setup: Setup | None = None
        self._lanes: tuple[Lane, Lane] | None = None  # for short and for long bodies; in the event loop's thread
        self._limits = Limits()
        self._ignored = IgnoredFieldLog()
        self._in_place: Preprocessor | None = None
        self._configuring, self._is_loaded = threading.Lock(), False
        self._forking = asyncio.Lock()
        self._spawn()

    def load(self, text: TextFiles) -> None:
        """Have the first process load the model's tokenizer and template, unless it has; `configure` waits for that."""
        if self._setup is not None:
            return
        self._setup = Setup(text, CPU_SECONDS)
        with contextlib.suppress(OSError):  # it is gone already, as `configure` reports
            send(self._control, encode(self._setup))

    def configure(self, limits: Limits, in_place: Preprocessor) -> None:
        """Set the engine's limits, and wait until the first process has loaded. Raises PreprocessingError.

        Args:
            in_place: Reads what is too short to be worth a process.
        """
        with self._configuring:  # the engine before this one may have been lost while it waited
            self._limits, self._in_place = limits, in_place
            if not self._is_loaded:
                self._wait_until_loaded()
            self._is_loaded = True

    async def prepare(
        self, endpoint: EndpointName, body: bytes, owner: str = "", history: bytes = b""
    ) -> Prepared | PreparedAnswer:
        """Return what the engine is to be asked for a body. Raises ApiError.

        Args:
            owner: Of the body; owners take turns.
            history: The items before the body, as JSON, where answers are stored.
        """
        assert self._in_place is not None, "configured before it is asked"
        if endpoint == "completion" and len(body) <= INLINE:
            completion, ignored = self._in_place.decoded(endpoint, body)
            if is_little(completion):
                self._ignored.note(endpoint, ignored)
                return self._in_place.of_decoded(endpoint, completion, ignored=ignored)
        takes_long, waiting = is_long(body, history), WaitingBody(owner, endpoint, body, history)
        self._lane(takes_long).put(waiting)
        try:
            answer: Outcome = decode_outcome(await waiting.outcome)
        except ProcessAborted:
            raise out_of_memory(memory_of_body(self._limits, takes_long)) from None
        except BodyTimeout:
            assert self._setup is not None, "loaded before it is asked"
            sentence = (
                f"Reading the body took more than {self._setup.cpu_seconds:g} s of computing; send less in one body"
            )
            raise invalid(f"{sentence}, or a shorter conversation.", code="body_too_complex") from None
        except ProcessKilled:
            raise _not_read("Two preprocessing processes were killed with this body") from None
        except StalledError:
            seconds = STALLED_LOOKS * LOOK_SECONDS
            raise _not_read(f"Two preprocessing processes made no progress in {seconds:g} s with this body") from None
        except PreprocessingError as error:
            raise _not_read(str(error).rstrip(".")) from None
        if isinstance(answer, Refused):
            if answer.code == "internal_error":
                log.error(printable(answer.message))
            raise answer.error()
        self._ignored.note(endpoint, answer.ignored)
        return answer

    @property
    def is_alive(self) -> bool:
        """Return whether the first process, which forks the others, is alive."""
        return self._process.poll() is None

    async def close(self) -> None:
        for lane in self._lanes or ():
            lane.close()
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, 2.0)
        self._process.kill()

    def _lane(self, takes_long: bool) -> Lane:
        if self._lanes is None:
            assert self._setup is not None, "loaded before it is asked"
            short = Lane(partial(self._child, SHORT), self._setup.cpu_seconds, 1)
            self._lanes = short, Lane(partial(self._child, LONG), self._setup.cpu_seconds, self._long_processes)
        return self._lanes[takes_long]

    def _spawn(self) -> None:
        self._control, theirs = socket.socketpair()
        command = [sys.executable, "-m", "inflight.server.preprocessing.worker", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def _wait_until_loaded(self) -> None:
        self._control.settimeout(START_SECONDS)
        try:
            if receive(self._control) != READY:
                raise EOFError
            send(self._control, encode(self._limits))
        except (OSError, EOFError):
            raise PreprocessingError(
                f"The preprocessing process did not start within {START_SECONDS:g} s; see its output above."
            ) from None
        self._control.setblocking(False)

    async def _child(self, role: bytes) -> ReadingProcess:
        """Return a fresh process. Raises PreprocessingError."""
        for _ in range(2):
            try:
                return await self._forked(role)
            except (StalledError, OSError, EOFError) as error:  # of the process that forks, which is started again
                fault = error
        why = f"{type(fault).__name__}: {fault}".removesuffix(": ")
        raise PreprocessingError(f"No process could be started for the body ({why})")

    async def _forked(self, role: bytes) -> ReadingProcess:
        async with self._forking:  # so that each gets the id of its own
            if not self.is_alive:  # it was killed from outside: by itself it does nothing but fork
                log.warning("The preprocessing process is gone; it is restarted.")
                self._control.close()
                self._spawn()
                send(self._control, encode(self._setup))
                await asyncio.to_thread(self._wait_until_loaded)
            ours, theirs = socket.socketpair()
            try:
                with theirs:
                    socket.send_fds(self._control, [role], [theirs.fileno()])
                answer = asyncio.get_running_loop().sock_recv(self._control, PID_BYTES)
                pid = int.from_bytes(await progressing(answer, self._process.pid), "big")
                if not pid:
                    raise EOFError
                return ReadingProcess(pid, *await asyncio.open_unix_connection(sock=ours))
            except BaseException as error:
                ours.close()
                if isinstance(error, StalledError):
                    log.warning("The preprocessing process made no progress and was killed.")
                if isinstance(error, StalledError | OSError | EOFError):
                    self._process.kill()
                    await asyncio.to_thread(self._process.wait)  # from here on it is known to be gone
                raise


def is_long(body: bytes, history: bytes = b"") -> bool:
    """Return whether a body may wait behind others' long ones; then it is dropped when its client leaves."""
    return len(body) + len(history) > SHORT_BYTES


def _not_read(why: str) -> ApiError:
    sentence = f"{why}; the body was not read. Try again in 1 s."
    return ApiError(503, sentence, type="server_error", code="body_not_read", retry_after=1.0)


# -- one process, and the bodies before it -----------------------------------------------------------------------------


class PreprocessingError(RuntimeError):
    """The processes cannot be started; the sentence says why."""


class StalledError(RuntimeError):
    """The process makes no progress."""


class ProcessAborted(EOFError):
    """A library has ended the process, for want of memory."""


class BodyTimeout(RuntimeError):
    """A body has used the CPU time that it may use."""


class ProcessKilled(RuntimeError):
    """Two preprocessing processes were killed with this body from outside."""


class ReadingProcess:
    """A connection to one child of the process that forks."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.pid = pid
        self._reader, self._writer = reader, writer

    @property
    def has_ended(self) -> bool:
        return self._reader.at_eof()

    async def read(self, endpoint: str, body: bytes, history: bytes) -> bytes:
        """Return the process's answer. Raises ProcessAborted; EOFError where the process ended without a message: it
        used its CPU time up, or was killed; StalledError where it makes no progress."""
        return await progressing(self._answer(endpoint, body, history), self.pid)

    def end(self) -> None:
        """End the process, also one that is stopped, which would not see its socket close."""
        if not self.has_ended:  # while the socket is open, its process has this id
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._writer.transport.abort()

    async def _answer(self, endpoint: str, body: bytes, history: bytes) -> bytes:
        for piece in job_frame(endpoint, body, history):
            self._writer.write(piece)
        await self._writer.drain()
        head = await self._reader.readexactly(LENGTH_BYTES)
        if head == ABORTED:
            raise ProcessAborted
        return await self._reader.readexactly(int.from_bytes(head, "big"))


async def progressing(work: Awaitable[T], pid: int) -> T:
    """Return the work's result. Raises StalledError where process `pid`, which does it, uses no CPU time."""
    task = asyncio.ensure_future(work)
    try:
        still, last = 0, cpu_ticks(pid)
        for _ in range(MAX_LOOKS):
            await asyncio.wait((task,), timeout=LOOK_SECONDS)
            if task.done():
                return task.result()
            used = cpu_ticks(pid)
            still = still + 1 if used is not None and used == last else 0
            if still >= STALLED_LOOKS:
                break
            last = used
        raise StalledError
    finally:
        task.cancel()
        await asyncio.wait((task,))


@dataclass(slots=True, eq=False)
class WaitingBody:
    """A body to be read, for the client that awaits `outcome`; done also where the client has left."""

    owner: str
    endpoint: str
    body: bytes
    history: bytes
    outcome: asyncio.Future[bytes] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Lane:
    """Processes that read one body at a time each. Owners take turns: no body waits behind all that another owner has
    sent. Bodies whose client has left are skipped."""

    def __init__(self, start: Callable[[], Awaitable[ReadingProcess]], cpu_seconds: float, processes: int):
        """Start processes when there are bodies for them.

        Args:
            start: Returns a fresh process. Raises PreprocessingError, StalledError, OSError, EOFError.
            cpu_seconds: Of one body, after which its process ends itself.
            processes: At work at once, at most.
        """
        self._start, self._cpu_seconds = start, cpu_seconds
        self._waiting: dict[str, deque[WaitingBody]] = {}  # by owner; the one whose turn is next comes first
        self._processes: list[ReadingProcess | None] = [None] * processes
        self._idle = list(range(processes))[::-1]  # the last is taken next: what was never needed is not started
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, waiting: WaitingBody) -> None:
        self._waiting.setdefault(waiting.owner, deque()).append(waiting)
        if self._idle:
            task = asyncio.ensure_future(self._work(self._idle.pop()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Cancel the bodies that wait, and end the processes."""
        for task in self._tasks:
            task.cancel()
        while (waiting := self._take()) is not None:
            waiting.outcome.cancel()
        for slot in range(len(self._processes)):
            self._drop(slot)

    def _take(self) -> WaitingBody | None:
        """Remove and return the next body; None when no client waits."""
        while self._waiting:
            owner = next(iter(self._waiting))
            bodies = self._waiting.pop(owner)
            first = bodies.popleft()
            if bodies:
                self._waiting[owner] = bodies
            if not first.outcome.done():
                return first
        return None

    async def _work(self, slot: int) -> None:
        """Read bodies until none waits, in one process after another."""
        try:
            while (waiting := self._take()) is not None:
                try:
                    set_outcome(waiting.outcome, await self._outcome(slot, waiting))
                finally:
                    waiting.outcome.cancel()  # where the lane was closed meanwhile
                    del waiting  # megabytes, until the next one comes
        finally:
            self._idle.append(slot)

    async def _outcome(self, slot: int, waiting: WaitingBody) -> bytes | Exception:
        """Return an encoded outcome, or why there is none. That a process stalls or is killed from outside says nothing
        about the body that it reads, and another process reads it, once."""
        fault: Exception = StalledError()
        for _ in range(2):
            began = time.monotonic()
            try:
                process = await self._process(slot)
                began = time.monotonic()
                answer = await process.read(waiting.endpoint, waiting.body, waiting.history)
                if answer[:1] == RENEW:
                    self._drop(slot)
                return answer[1:]
            except (PreprocessingError, ProcessAborted) as error:
                self._drop(slot)
                return error
            except StalledError as error:
                fault = error
            except (OSError, EOFError):
                fault = ProcessKilled()
            self._drop(slot)
            if isinstance(fault, ProcessKilled) and time.monotonic() - began >= self._cpu_seconds:
                return BodyTimeout()
        return fault

    async def _process(self, slot: int) -> ReadingProcess:
        """Return the process of a slot, or a fresh one. Raises PreprocessingError."""
        process = self._processes[slot]
        if process is not None and process.has_ended:  # since the last body
            self._drop(slot)
        process = self._processes[slot] = self._processes[slot] or await self._start()
        return process

    def _drop(self, slot: int) -> None:
        """End a process; the next body gets a fresh one."""
        process, self._processes[slot] = self._processes[slot], None
        if process is not None:
            process.end()
