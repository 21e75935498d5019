"""The server's side of preprocessing: who waits for which process, and what is said when one of them gives up.

Two processes work, one for what is short and one for what is long, so that a question does not wait behind a document.
Before each, owners take turns by what they have used of it: nobody waits behind all that somebody else has sent. A
process that has kept memory of a body is made anew, which gives it back. Knows processes and lines; what a job is,
`wire` knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from inflight.engine.event_stream import settle
from inflight.server.bodies.completions import COMPLETION
from inflight.server.call import EndpointName
from inflight.server.errors import ApiError, invalid
from inflight.server.fair_line import FairLine
from inflight.server.preprocessing.preprocessor import Preprocessor, is_little
from inflight.server.preprocessing.wire import (
    LENGTH_BYTES,
    LONG,
    READY,
    RENEW,
    SHORT,
    Limits,
    Outcome,
    Prepared,
    PreparedAnswer,
    Refused,
    Setup,
    decode_outcome,
    encode,
    job_frame,
    receive,
    send,
)

INLINE = 1 << 12  # bytes of a completion's body that is read in place, in a millisecond or so
SHORT_BYTES = 1 << 15  # bytes of a body that goes to the quick process
CPU_SECONDS = 10.0  # of one body; a megabyte of text takes one or two
START_SECONDS = 60.0

log = logging.getLogger("inflight.server")


class PreprocessingError(RuntimeError):
    """The processes cannot be started; the sentence says why."""


@dataclass(slots=True, eq=False)
class _Waiting:
    owner: str
    endpoint: EndpointName
    body: bytes
    history: bytes
    outcome: asyncio.Future[bytes]
    tried: bool = False

    @property
    def is_over(self) -> bool:
        """Whoever asked went away."""
        return self.outcome.done()


class PreprocessingPool:
    def __init__(self) -> None:
        """Starts the first process, whose modules take a third of a second, beside whoever goes on here."""
        self._setup: Setup | None = None
        self._lanes: list[_Lane] = []
        self._limits = Limits()
        self._in_place: Preprocessor | None = None
        self._reviving = asyncio.Lock()
        self._spawn()

    def load(self, model_folder: Path) -> None:
        """The first process loads the model's tokenizer and template; `configure` waits for that."""
        self._setup = Setup(str(model_folder), CPU_SECONDS)
        with contextlib.suppress(OSError):  # it is gone already, as `configure` tells
            send(self._control, encode(self._setup))

    def configure(self, limits: Limits, in_place: Preprocessor) -> None:
        """Once the engine is known. Waits until the first process has loaded; raises PreprocessingError.

        in_place: reads what is too short to be worth a process.
        """
        self._limits, self._in_place = limits, in_place
        self._wait_until_loaded()

    async def prepare(
        self, endpoint: EndpointName, body: bytes, owner: str = "", history: bytes = b""
    ) -> Prepared | PreparedAnswer:
        """owner: with whom the body takes turns. history: where answers are stored, the items that come before it, as
        JSON. Raises ApiError."""
        assert self._in_place is not None, "configured before it is asked"
        if endpoint == "completion" and len(body) <= INLINE:
            completion = COMPLETION.decode(body)
            if is_little(completion):
                return self._in_place.completion(completion)
        if not self._lanes:
            self._lanes = [_Lane(partial(self._child, role), self._is_gone) for role in (SHORT, LONG)]
        outcome = asyncio.get_running_loop().create_future()
        is_long = len(body) + len(history) > SHORT_BYTES
        self._lanes[is_long].put(_Waiting(owner, endpoint, body, history, outcome))
        try:
            answer: Outcome = decode_outcome(await outcome)
        except EOFError:
            raise _gave_up() from None
        if isinstance(answer, Refused):
            raise answer.error()
        return answer

    @property
    def is_alive(self) -> bool:
        """Whether the first process, which forks the others, is."""
        return self._process.poll() is None

    async def close(self) -> None:
        for lane in self._lanes:
            lane.close()
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, 2.0)
        self._process.kill()

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
                f"The process that reads requests did not start within {START_SECONDS:g} s; what it said stands above."
            ) from None
        self._control.settimeout(None)

    async def _is_gone(self) -> bool:
        """Whether the first process was killed, which says nothing about a body."""
        await asyncio.sleep(0.05)
        return self._process.poll() is not None

    async def _child(self, role: bytes) -> socket.socket:
        """A fresh process's socket."""
        async with self._reviving:
            if self._process.poll() is not None:  # somebody has killed the first process, which does nothing but fork
                log.warning("The process that reads requests is gone; it is started anew.")
                self._control.close()
                self._spawn()
                send(self._control, encode(self._setup))
                await asyncio.to_thread(self._wait_until_loaded)
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [role], [theirs.fileno()])
        ours.setblocking(False)
        return ours


class _Lane:
    """One process at work, and what waits for it."""

    def __init__(self, child: Callable[[], Awaitable[socket.socket]], was_orphaned: Callable[[], Awaitable[bool]]):
        self._child, self._was_orphaned = child, was_orphaned
        self._line = FairLine[_Waiting]()
        self._news = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    def put(self, waiting: _Waiting) -> None:
        self._line.put(waiting)
        self._news.set()

    def close(self) -> None:
        self._task.cancel()
        for waiting in self._line.empty():
            waiting.outcome.cancel()

    async def _run(self) -> None:
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while True:
                while (waiting := self._line.next()) is None:
                    self._news.clear()
                    await self._news.wait()
                self._line.take(0.0)
                began = time.monotonic()
                if streams is not None and streams[0].at_eof():  # it has ended since, which is nobody's fault here
                    streams[1].close()
                    streams = None
                try:
                    streams = streams or await asyncio.open_unix_connection(sock=await self._child())
                    answer = await _asked(*streams, waiting)
                except (OSError, EOFError, PreprocessingError):
                    if streams is not None:
                        streams[1].close()
                    streams = None
                    if not waiting.tried and await self._was_orphaned():
                        waiting.tried = True
                        self._line.put(waiting)
                    else:
                        settle(waiting.outcome, EOFError())
                    self._line.charge(waiting.owner, time.monotonic() - began)
                    del waiting
                    continue
                self._line.charge(waiting.owner, time.monotonic() - began)
                settle(waiting.outcome, answer[1:])
                if answer[:1] == RENEW:
                    streams[1].close()
                    streams = None
                del waiting, answer  # megabytes, until the next one comes
        finally:
            if streams is not None:
                streams[1].close()


async def _asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, job: _Waiting) -> bytes:
    """Raises EOFError where the process has ended."""
    for piece in job_frame(job.endpoint, job.body, job.history):
        writer.write(piece)
    await writer.drain()
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    return await reader.readexactly(length)


def _gave_up() -> ApiError:
    return invalid(
        f"Reading the body took more than {CPU_SECONDS:g} s of computing, or more memory than one body may take; "
        "send less in one body, or a shorter conversation.",
        code="body_too_complex",
    )
