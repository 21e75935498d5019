"""The engine's process, where HTTP runs in others: starts them, tells them how far the engine is, shows the metrics,
and starts anew what was killed.

Knows processes and what each has to be told; the engine's calls go another way. One event loop, beside the engine's
thread.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import uvloop

from inflight.core.scheduling.snapshot import Snapshot
from inflight.engine.bridge import AsyncBridge
from inflight.engine.event_stream import EngineStopped
from inflight.server.call_counts import SharedCallCounts
from inflight.server.heap import give_back, settled
from inflight.server.loading import Described
from inflight.server.logs import Format
from inflight.server.offload import offload
from inflight.server.preprocessing.wire import LENGTH_BYTES
from inflight.server.process import SWITCH_SECONDS
from inflight.server.processes.messages import (
    Answered,
    AskPage,
    FromChild,
    Loading,
    Model,
    NotAsked,
    Page,
    Ready,
    Setup,
    Signal,
    ToChild,
    decode_from_child,
    encode,
)
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenants

SHORT_LIFE = 10.0  # seconds; a process that ends sooner is not started anew at once
TRIES = 5  # short lives of one place, one after another, until the server gives up
MOST_FOLDER = 80  # characters; the system's bound for a socket's path is about 104
ENDING_SECONDS = 10.0  # that a process which is to end may take beyond its calls

log = logging.getLogger("inflight.server")


class ProcessesError(ValueError):
    """HTTP cannot be run in processes of its own; the sentence says why."""


class Counted(Protocol):
    """The metrics."""

    def observe_http(self, endpoint: str, status: int, seconds: float) -> None: ...

    def refused(self, code: str) -> None: ...

    def render(self, snapshot: Snapshot | None) -> tuple[bytes, str]: ...


@dataclass(frozen=True, slots=True)
class Engine:
    """One that is loaded. clock_zero: where its clock began, on the machine's monotonic clock."""

    bridge: AsyncBridge
    metrics: Counted
    described: Described
    clock_zero: float


Load = Callable[[Callable[[str], None], Callable[[Path], None]], Engine]  # to be told: what it does, the model's folder


class Supervisor:
    """Runs until it is told to stop; returns the exit code."""

    def __init__(
        self,
        settings: ServerSettings,
        tenants: Tenants,
        load: Load,
        begin: Callable[[], None],
        *,
        version: str,
        log_format: Format,
        log_level: str,
    ):
        """load: runs in a thread. begin: called when all processes take calls for the first time. Raises
        ProcessesError."""
        try:
            from inflight.engine.remote.server import EngineServer
        except ImportError:
            raise ProcessesError(
                "--api-processes needs pyzmq, which is not installed; pip install 'inflight[processes]', or leave the "
                "option out."
            ) from None
        self._make_server = EngineServer
        self._settings, self._tenants = settings, tenants
        self._load, self._begin = load, begin
        self._version = version
        self._log_format: Format = log_format
        self._log_level = log_level
        self._folder = _private_folder()
        self._counts = SharedCallCounts(self._folder / "calls", tenants.names, settings.api_processes)
        self._children: dict[int, _Child] = {}
        self._short_lives = [0] * settings.api_processes
        self._news: list[ToChild] = []  # that one which is started now has missed
        self._engine: Engine | None = None
        self._server: EngineServer | None = None
        self._serial = self._signals = self._code = 0
        self._is_ending = self._has_begun = False
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self) -> int:
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._run())
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        return self._code

    @property
    def is_loading(self) -> bool:
        """Its thread cannot be interrupted."""
        return self._engine is None

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._all_ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._on_signal, number)
        for place in range(self._settings.api_processes):
            self._spawn(place)
        self._start(self._open())
        await self._all_ended.wait()
        for task in self._tasks:
            task.cancel()
        if self._server is not None:
            self._server.close()
        if self._engine is not None:
            await asyncio.to_thread(self._engine.bridge.close)

    # -- the engine -----------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        try:
            engine = self._engine = await self._loaded()
        except Exception as error:
            ours = type(error).__module__.startswith("inflight.") or isinstance(error, OSError)
            log.error(str(error), exc_info=None if ours else error)
            return self._fail()
        address = f"ipc://{self._folder}/engine"
        self._server = self._make_server(engine.bridge, address, self._given_up)
        self._tell_all(Ready(address, engine.clock_zero, engine.described))
        self._start(give_back())
        with settled():
            while engine.bridge.stopped is None:
                await asyncio.sleep(1.0)
        log.error(engine.bridge.stopped)
        self._server.stop(engine.bridge.stopped)
        self._fail()  # also where it was ending: not all calls have had their answers

    async def _loaded(self) -> Engine:
        loaded: asyncio.Future[Engine] = self._loop.create_future()
        later = self._loop.call_soon_threadsafe

        def doing(what: str) -> None:
            later(self._tell_all, Loading(what))

        def found(folder: Path) -> None:
            later(self._tell_all, Model(folder))

        def settle(how: Callable[[Any], None], outcome: Any) -> None:
            if not loaded.done():  # nobody waits for it any more, where the end came first
                how(outcome)

        def load() -> None:
            try:
                engine = self._load(doing, found)
            except BaseException as error:
                later(settle, loaded.set_exception, error)
            else:
                later(settle, loaded.set_result, engine)

        threading.Thread(target=load, name="inflight-loader", daemon=True).start()
        return await loaded

    async def _page(self, child: _Child, question: int) -> None:
        engine = self._engine
        assert engine is not None, "nobody asks before there is one"
        try:
            try:
                snapshot = await engine.bridge.snapshot()
            except EngineStopped:
                snapshot = None
            text, content_type = await offload(partial(engine.metrics.render, snapshot))
        except Exception:  # a mistake in counting is no reason to stop
            log.exception("the metrics could not be told")
            return child.tell(Page(question, None, ""))
        child.tell(Page(question, text, content_type))

    # -- processes ------------------------------------------------------------------------------------------------

    def _spawn(self, place: int) -> None:
        child = self._children[place] = _Child(place, self._serial)
        self._serial += 1
        child.tell(
            Setup(
                self._settings,
                self._tenants.keys,
                place,
                child.serial,
                self._engine is None,
                self._folder / "calls",
                self._version,
                self._log_format,
                self._log_level,
            )
        )
        for message in self._news:
            child.tell(message)
        self._start(self._watch(child))

    async def _watch(self, child: _Child) -> None:
        """From its start to its end."""
        await child.listen(partial(self._heard, child))
        code = await child.ended()
        left = self._counts.clear(child.place)
        if self._server is not None:
            self._server.lost(str(child.serial))
        del self._children[child.place]
        if self._is_ending:
            return self._end_if_last()
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        log.error(
            f"API process {child.place} ended {how}; its calls under way ({left}) are aborted, and it is started anew."
        )
        short = not child.is_up or time.monotonic() - child.started < SHORT_LIFE
        self._short_lives[child.place] = self._short_lives[child.place] + 1 if short else 0
        if self._short_lives[child.place] >= TRIES:
            log.error(f"API process {child.place} ended {TRIES} times soon after its start; what it said stands above.")
            return self._fail()
        await asyncio.sleep(min(0.1 * 2 ** self._short_lives[child.place], 2.0) if short else 0.0)
        if self._is_ending:
            return self._end_if_last()
        self._spawn(child.place)

    def _heard(self, child: _Child, message: FromChild) -> None:
        if isinstance(message, AskPage):
            self._start(self._page(child, message.question))
        elif isinstance(message, Answered | NotAsked):
            if self._engine is None:
                return
            if isinstance(message, Answered):
                self._engine.metrics.observe_http(message.route, message.status, message.seconds)
            else:
                self._engine.metrics.refused(message.code)
        else:
            child.is_up = True
            up = sum(one.is_up for one in self._children.values())
            if not self._has_begun and up == self._settings.api_processes:
                self._has_begun = True
                self._begin()

    def _given_up(self, name: str) -> None:
        for child in self._children.values():
            if str(child.serial) == name:
                child.kill()

    def _tell_all(self, message: ToChild) -> None:
        self._news = [one for one in self._news if type(one) is not type(message)] + [message]
        for child in self._children.values():
            child.tell(message)

    # -- the end --------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        """Each process lets its calls finish, and ends."""
        self._signals += 1
        if self._signals == 1 and not self._is_ending:
            name, left = signal.Signals(number).name, self._counts.everywhere
            log.info(f"{name}: taking no new work; {left} calls are under way." if left else f"{name}: stopping.")
        self._end(number, self._settings.drain_timeout if self._engine is not None else 0.0)

    def _fail(self) -> None:
        self._code = 1
        self._end(signal.SIGTERM, 0.0)

    def _end(self, number: int, seconds: float) -> None:
        """seconds: for calls that are under way."""
        if not self._is_ending:
            self._start(self._kill_late(seconds + ENDING_SECONDS))
        self._is_ending = True
        for child in self._children.values():
            child.tell(Signal(number))
        self._end_if_last()

    def _end_if_last(self) -> None:
        if not self._children:
            self._all_ended.set()

    async def _kill_late(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        for child in self._children.values():
            log.error(f"API process {child.place} has not ended in time, and is killed.")
            child.kill()

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.critical("the server stops by a fault", exc_info=fault)
            self._fail()


def _private_folder() -> Path:
    """Nobody else may enter it. Raises ProcessesError."""
    parent = tempfile.gettempdir()
    if len(parent) > MOST_FOLDER:
        raise ProcessesError(
            f"The folder of temporary files has a path of {len(parent)} characters ({parent}), and a socket in it may "
            f"have {MOST_FOLDER} before its own name; set TMPDIR to a shorter one."
        )
    return Path(tempfile.mkdtemp(prefix="inflight-", dir=parent))


class _Child:
    """One process, and the socket that is its life."""

    def __init__(self, place: int, serial: int):
        self.place, self.serial = place, serial
        self.started = time.monotonic()
        self.is_up = False
        self._ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "inflight.server.processes.child", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._untold: list[bytes] = []
        self._writer: asyncio.StreamWriter | None = None

    def tell(self, message: ToChild) -> None:
        data = encode(message)
        frame = len(data).to_bytes(LENGTH_BYTES, "big") + data
        if self._writer is None:
            self._untold.append(frame)
        elif not self._writer.is_closing():  # who has ended hears nothing; its successor is told the news
            self._writer.write(frame)

    async def listen(self, heard: Callable[[FromChild], None]) -> None:
        """Until it closes its end, or says what is no message."""
        self._ours.setblocking(False)
        reader, self._writer = await asyncio.open_unix_connection(sock=self._ours)
        self._writer.writelines(self._untold)
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
                heard(decode_from_child(await reader.readexactly(length)))
        except (OSError, EOFError):
            return
        except ValueError as error:
            log.error(f"API process {self.place} said what is no message ({error}), and is killed.")
            self.kill()

    async def ended(self) -> int:
        """Its exit code; below 0: the signal that killed it. It has closed its end, and will not be long."""
        assert self._writer is not None, "it was listened to"
        self._writer.close()
        return await asyncio.to_thread(self._process.wait)

    def kill(self) -> None:
        self._process.kill()
