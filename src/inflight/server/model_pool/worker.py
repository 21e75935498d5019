"""An engine's process, as the server sees it: it is started, reports its progress, and ends with the socket to it.

A process can be started ahead of its need (`Workers`), so that its modules, which take as long as a small model's
weights, are there when a model is to be loaded.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

from inflight.engine.event_stream import set_outcome
from inflight.server.model_pool.messages import (
    ClientDropped,
    ClientLost,
    EngineReady,
    Failed,
    FromModel,
    decode_from_model,
)
from inflight.server.processes.control import Control
from inflight.server.processes.messages import (
    AdapterChanged,
    AskFrames,
    AskPage,
    LoadAdapter,
    Loading,
    Model,
    Notice,
    Page,
    ShownFrames,
    UnloadAdapter,
)
from inflight.server.processes.pending_replies import PendingReplies

ENDING_SECONDS = 5.0
PAGE_SECONDS = 5.0  # for which its metrics are waited for
SHOWN_SECONDS = 1.0  # for which frames are, for which the page waits

log = logging.getLogger("inflight.server")


class WorkerError(RuntimeError):
    """A model could not be loaded, or its process has ended; the sentence says why."""


class Worker:
    """One process. Lives in one event loop, from `start` on."""

    def __init__(self, module: str, inherited: Sequence[int] = (), ending_seconds: float = ENDING_SECONDS):
        """Start a process.

        Args:
            module: Its program, which is given the number of a descriptor.
            inherited: Descriptors.
            ending_seconds: After which one that is to end is killed.
        """
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", module, str(theirs.fileno())]
        with theirs:
            handed_down = (theirs.fileno(), *inherited)
            self._process = subprocess.Popen(command, pass_fds=handed_down, stdin=subprocess.DEVNULL)
        self._control = Control(ours, decode_from_model)
        self._pages, self._frames = PendingReplies[bytes | None](), PendingReplies[dict[str, bytes]]()
        self._changes = PendingReplies[AdapterChanged | None]()
        self._loading: Callable[[str], None] = lambda doing: None
        self._dropped: Callable[[str], None] = lambda client: self.break_off("The server has read no answers for long.")
        self.failed: str | None = None  # why it ends, if its process has said so, and logged it
        self._why = ""
        self._is_ending, self._ending_seconds = False, ending_seconds

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def start(
        self,
        setup: bytes,
        loading: Callable[[str], None] = lambda doing: None,
        dropped: Callable[[str], None] | None = None,
    ) -> None:
        """Send the first message.

        Args:
            setup: The message.
            loading: Called with each part of the start that begins.
            dropped: Called with the name of a client that is dropped; None: there is one client, and the process ends.
        """
        loop, self._loading = asyncio.get_running_loop(), loading
        self._dropped = self._dropped if dropped is None else dropped
        self._found: asyncio.Future[Model] = loop.create_future()
        self._ready: asyncio.Future[EngineReady] = loop.create_future()
        self.ended: asyncio.Future[str] = loop.create_future()  # why, empty where it was asked to
        self._control.send_encoded(setup)
        self._watching = loop.create_task(self._watch())

    async def found(self) -> Model:
        """Return where the model's files are. Raises WorkerError."""
        return await asyncio.shield(self._found)

    async def ready(self) -> EngineReady:
        """Raises WorkerError."""
        return await asyncio.shield(self._ready)

    async def metrics(self) -> bytes | None:
        """Return the page of its engine; None if there is none, or it does not answer."""
        if self.ended.done():
            return None
        try:
            return await self._pages.ask(lambda question: self._control.send(AskPage(question)), PAGE_SECONDS)
        except TimeoutError:
            return None

    async def shown(self, asked: bytes, name: str = "") -> dict[str, bytes]:
        """Return what its engine does, as `live.distant` writes it, by its name; empty where it does not answer."""
        if self.ended.done():
            return {}
        send = self._control.send
        try:
            return await self._frames.ask(lambda question: send(AskFrames(question, asked, name)), SHOWN_SECONDS)
        except TimeoutError:
            return {}

    def count(self, message: Notice) -> None:
        """Send what the metrics of its engine count."""
        self._control.send(message)

    def client_lost(self, name: str) -> None:
        """Abort the requests of a client whose process has ended."""
        self._control.send(ClientLost(name))

    async def change_adapter(self, make: Callable[[int], LoadAdapter | UnloadAdapter]) -> AdapterChanged | None:
        """Load or unload an adapter; None where the process ends meanwhile. make: the message, by its number."""
        return await self._changes.ask(lambda question: self._control.send(make(question)))

    async def end(self) -> None:
        """End the process; return when its memory is free."""
        self._is_ending = True
        self._control.close()
        try:
            await asyncio.wait_for(asyncio.shield(self.ended), self._ending_seconds)
        except TimeoutError:
            log.error("The process of a model has not ended in time, and is killed.")
            self._process.kill()
            await self.ended

    def break_off(self, why: str) -> None:
        """Kill the process; `ended` holds the reason."""
        self._why = self._why or why
        self._process.kill()

    def kill(self) -> None:
        """Kill a process whose `start` was never called."""
        self._is_ending = True
        self._control.discard()
        self._process.kill()

    async def _watch(self) -> None:
        """Follow the process from its start to its end."""
        try:
            await self._control.listen(self._heard)
            self._control.close()
            await asyncio.to_thread(self._process.wait)
        except ValueError as error:
            self._why = f"The model's process said what is no message ({error})."
        finally:  # also when it is cancelled: no task may wait for ever
            self._process.kill()
            self._has_ended()

    def _has_ended(self) -> None:
        """Report the end to all that wait for the process."""
        code = self._process.wait()
        why = "" if self._is_ending else self._why or _ending(code)
        for replies in (self._pages, self._changes):
            replies.end(None)
        self._frames.end({})
        fault = WorkerError(why or "The model was unloaded while it was being loaded.")
        for future in (self._found, self._ready):
            if not future.done():
                future.set_exception(fault)
                future.exception()  # it is raised where it is awaited, and need not be
        set_outcome(self.ended, why)

    def _heard(self, message: FromModel) -> None:
        match message:
            case Model():
                set_outcome(self._found, message)
            case EngineReady():
                set_outcome(self._ready, message)
            case Loading():
                self._loading(message.doing)
            case ClientDropped():
                self._dropped(message.name)
            case AdapterChanged():
                self._changes.came(message.question, message)
            case Failed():
                self._why = self.failed = message.sentence
            case Page():
                self._pages.came(message.question, message.text)
            case ShownFrames():
                self._frames.came(message.question, message.frames)


class Workers:
    """Starts processes, and one ahead of its need."""

    def __init__(self, module: str, inherited: Sequence[int] = ()):
        self._module, self._inherited = module, inherited
        self._spare: Worker | None = None

    def prepare(self) -> None:
        """Start the next process."""
        if self._spare is None:
            self._spare = Worker(self._module, self._inherited)

    def take(self) -> Worker:
        spare, self._spare = self._spare, None
        if spare is not None and spare.is_alive:
            return spare
        return Worker(self._module, self._inherited)

    def close(self) -> None:
        if self._spare is not None:
            self._spare.kill()
            self._spare = None


def _ending(code: int) -> str:
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return f"The engine's process ended {how}; the system's log may say why (memory that ran out, for instance)."
