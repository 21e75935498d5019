"""The server's side of preprocessing: which processes read bodies, and the error where one of them ends.

One process reads short bodies and several read long ones, so that a question does not wait behind a document. All are
forked from a first process, which has loaded the tokenizer and the template. A process that has kept memory of a body
is replaced by a fresh one, which gives it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

from inflight.cpus import usable_cpus
from inflight.limited_process import receive, send
from inflight.server.common.prepared import EndpointName, Limits, Prepared, PreparedAnswer
from inflight.server.errors import ApiError, invalid
from inflight.server.ignored_field_log import IgnoredFieldLog
from inflight.server.openai.completions import is_little
from inflight.server.preprocessing.preprocessor import Preprocessor
from inflight.server.preprocessing.process import (
    LOOK_SECONDS,
    STALLED_LOOKS,
    Lane,
    PreprocessingError,
    ProcessEnded,
    ReadingProcess,
    StalledError,
    WaitingBody,
    progressing,
)
from inflight.server.preprocessing.worker import (
    LONG,
    PID_BYTES,
    READY,
    SHORT,
    Outcome,
    Refused,
    Setup,
    decode_outcome,
    encode,
    memory_of_body,
    out_of_memory,
)

INLINE = 1 << 12  # bytes of a completion's body that is read in place, in a millisecond or so
SHORT_BYTES = 1 << 15  # bytes of a body that goes to the quick process
CPU_SECONDS = 10.0  # of one body; a megabyte of text takes one or two
START_SECONDS = 60.0
MAX_LONG_PROCESSES = 4  # that read long bodies at once

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
        self._forking = asyncio.Lock()
        self._spawn()

    def load(self, model_folder: Path) -> None:
        """Have the first process load the model's tokenizer and template, unless it has; `configure` waits for that."""
        if self._setup is not None:
            return
        self._setup = Setup(str(model_folder), CPU_SECONDS)
        with contextlib.suppress(OSError):  # it is gone already, as `configure` reports
            send(self._control, encode(self._setup))

    def configure(self, limits: Limits, in_place: Preprocessor) -> None:
        """Set the engine's limits, and wait until the first process has loaded. Raises PreprocessingError.

        Args:
            in_place: Reads what is too short to be worth a process.
        """
        is_loaded = self._in_place is not None  # for an engine before this one, of the same settings
        self._limits, self._in_place = limits, in_place
        if not is_loaded:
            self._wait_until_loaded()

    async def prepare(
        self, endpoint: EndpointName, body: bytes, owner: str = "", history: bytes = b""
    ) -> Prepared | PreparedAnswer:
        """Return what the engine is to be asked for a body.

        Args:
            owner: Of the body; owners take turns.
            history: The items before the body, as JSON, where answers are stored.

        Raises:
            ApiError: The body is refused, or could not be read.
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
        except ProcessEnded as ended:
            raise self._too_complex(ended, takes_long) from None
        except StalledError:
            raise _not_read(
                f"Two processes stood still for {STALLED_LOOKS * LOOK_SECONDS:g} s with this body"
            ) from None
        except PreprocessingError as error:
            raise _not_read(str(error).rstrip(".")) from None
        if isinstance(answer, Refused):
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
            short, long = (
                Lane(partial(self._child, role), self._is_gone, processes)
                for role, processes in ((SHORT, 1), (LONG, self._long_processes))
            )
            self._lanes = short, long
        return self._lanes[takes_long]

    def _too_complex(self, ended: ProcessEnded, takes_long: bool) -> ApiError:
        """Return why a process has ended itself: before it can have used its time it was for want of memory."""
        assert self._setup is not None, "loaded before it is asked"
        if ended.seconds < self._setup.cpu_seconds:
            return out_of_memory(memory_of_body(self._limits, takes_long))
        return invalid(
            f"Reading the body took more than {self._setup.cpu_seconds:g} s of computing; send less in one body, or a "
            "shorter conversation.",
            code="body_too_complex",
        )

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
        self._control.setblocking(False)

    async def _is_gone(self) -> bool:
        """Return whether the first process was killed, which says nothing about a body."""
        await asyncio.sleep(0.05)
        return self._process.poll() is not None

    async def _child(self, role: bytes) -> ReadingProcess:
        """Return a fresh process. Raises PreprocessingError, StalledError, OSError, EOFError."""
        try:
            return await self._forked(role)
        except StalledError:  # of the process that forks, which is started again: no fault of a body
            return await self._forked(role)

    async def _forked(self, role: bytes) -> ReadingProcess:
        async with self._forking:  # so that each gets the id of its own
            if self._process.poll() is not None:  # it was killed from outside: by itself it does nothing but fork
                log.warning("The process that reads requests is gone; it is started again.")
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
                    log.warning("The process that reads requests makes no progress, and is killed.")
                    self._process.kill()
                    await asyncio.to_thread(self._process.wait)  # from here on it is known to be gone
                raise


def is_long(body: bytes, history: bytes = b"") -> bool:
    """Return whether a body may wait behind others' long ones; then it is dropped when its client leaves."""
    return len(body) + len(history) > SHORT_BYTES


def _not_read(why: str) -> ApiError:
    return ApiError(
        503,
        f"{why}; the body was not read. Try again in 1 s.",
        type="server_error",
        code="body_not_read",
        retry_after=1.0,
    )
