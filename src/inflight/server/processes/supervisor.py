"""The engine's process, where HTTP runs in others: starts them, tells them how far the engine is, shows the metrics,
and starts anew what was killed.

Knows processes and what each has to be told; the engine's calls go another way. One event loop, beside the engine's
thread.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import uvloop

from inflight.counted import counted
from inflight.extras import pip_install
from inflight.server.call_counts import SharedCallCounts, shared_table
from inflight.server.heap import give_back, settled
from inflight.server.live.frame_shelf import FrameShelf
from inflight.server.loaded_engine import LoadedEngine
from inflight.server.loader import LOADER, SWITCH_SECONDS, leave_loader, log_failure
from inflight.server.logs import Format
from inflight.server.metrics import Metrics
from inflight.server.offload import in_own_thread
from inflight.server.process import BACKLOG
from inflight.server.processes.control import Control
from inflight.server.processes.folder import JOBS, private_folder
from inflight.server.processes.messages import (
    NO_SUCCESSOR,
    Answered,
    AskFrames,
    AskPage,
    FromChild,
    JobEnded,
    JobsCounted,
    LinesAnswered,
    Loading,
    Model,
    NotAsked,
    Page,
    Ready,
    Reload,
    Setup,
    ShownFrames,
    Signal,
    ToChild,
    Up,
    decode_from_child,
)
from inflight.server.reloading import can_reload, reload_certificate, reload_keys
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenants

SHORT_LIFE = 10.0  # seconds; a process that ends sooner is not started anew at once
OWNER = 0  # the place whose process has files and batch jobs
TRIES = 5  # short lives of one place, one after another, until the server gives up
ENDING_SECONDS = 10.0  # that a process which is to end may take beyond its calls

log = logging.getLogger("inflight.server")


class ProcessesError(ValueError):
    """HTTP cannot be run in processes of its own; the sentence says why."""


# To be told: what it does, the model's folder.
Load = Callable[[Callable[[str], None], Callable[[Path], None]], LoadedEngine]


class Supervisor:
    """Runs until it is told to stop; returns the exit code."""

    def __init__(
        self,
        settings: ServerSettings,
        tenants: Tenants,
        bound: socket.socket,
        load: Load,
        begin: Callable[[], None],
        *,
        version: str,
        log_format: Format,
        log_level: str,
    ):
        """bound: listens, and is handed down, so that what waits in it when a process ends is taken by another one, and
        nobody else can have the port. load: runs in a thread. begin: called when all processes take calls for the first
        time. Raises ProcessesError."""
        try:
            from inflight.engine.remote.server import EngineServer
        except ImportError:
            raise ProcessesError(
                f"--api-processes needs pyzmq, which is not installed; {pip_install('processes')}, or leave the option "
                "out."
            ) from None
        self._make_server = EngineServer
        self._settings, self._tenants, self._bound = settings, tenants, bound
        self._load, self._begin = load, begin
        self._version = version
        self._log_format: Format = log_format
        self._log_level = log_level
        self._listeners = [bound]  # that are open while processes may be started
        self._jobs: socket.socket | None = None
        self._table = shared_table()
        self._counts = SharedCallCounts(self._table, tenants.names, settings.api_processes)
        self._children: dict[int, _Child] = {}
        self._short_lives = [0] * settings.api_processes
        self._news: list[ToChild] = []  # that one which is started now has missed
        self._engine: LoadedEngine | None = None
        self._shelf = FrameShelf(None)
        self._server: EngineServer | None = None
        self._serial = self._signals = self._code = 0
        self._is_ending = self._has_begun = self._has_broken = False
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self) -> int:
        sys.setswitchinterval(SWITCH_SECONDS)
        with private_folder() as self._folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._run())
        if self._engine is None:
            leave_loader(self._code)
        return self._code

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._all_ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._on_signal, number)
        if can_reload(self._settings, self._tenants):
            self._loop.add_signal_handler(signal.SIGHUP, lambda: self._start(self._reload()))
        elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self._loop.add_signal_handler(signal.SIGHUP, self._on_signal, signal.SIGHUP)
        if self._settings.data_dir is not None:
            self._jobs = socket.socket(socket.AF_UNIX)
            self._listeners.append(self._jobs)
            self._jobs.bind(str(self._folder / JOBS))
            self._jobs.listen(BACKLOG)
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
        later = self._loop.call_soon_threadsafe

        def doing(what: str) -> None:
            later(self._tell_all, Loading(what))

        def found(folder: Path) -> None:
            later(self._tell_all, Model(folder))

        try:
            engine = self._engine = await in_own_thread(partial(self._load, doing, found), LOADER)
        except Exception as error:
            log_failure(str(error), error)
            return self._fail()
        address = f"ipc://{self._folder}/engine"
        self._server = self._make_server(engine.bridge, address, self._given_up)
        self._shelf = FrameShelf(engine.shown)
        self._tell_all(Ready(address, engine.described))
        self._start(give_back())
        with settled():
            while not self._is_broken():
                await asyncio.sleep(1.0)

    def _is_broken(self) -> bool:
        """Whether the engine works no more: then all is at its end, also where it was ending, since not all calls have
        had their answers."""
        stopped = None if self._engine is None else self._engine.bridge.stopped
        if stopped is not None and self._server is not None and not self._has_broken:
            self._has_broken = True
            log.error(stopped)
            self._server.stop(stopped)
            self._fail()
        return stopped is not None

    async def _page(self, child: _Child, question: int) -> None:
        engine = self._engine
        assert engine is not None, "nobody asks before there is one"
        try:
            text, content_type = await engine.page()
        except Exception:  # a mistake in counting is no reason to stop
            log.exception("the metrics could not be told")
            return child.tell(Page(question, None, ""))
        child.tell(Page(question, text, content_type))

    async def _show(self, child: _Child, asked: AskFrames) -> None:
        try:
            shown = await self._shelf.answer(asked.data, asked.name)
        except Exception:  # a mistake in drawing is no reason to stop
            log.exception("what the engine does could not be shown")
            shown = b""
        child.tell(ShownFrames(asked.question, shown))

    # -- processes ------------------------------------------------------------------------------------------------

    def _spawn(self, place: int) -> None:
        inherited = [self._bound.fileno(), self._table]
        jobs = self._jobs.fileno() if self._jobs is not None and place == OWNER else None
        child = self._children[place] = _Child(place, self._serial, inherited if jobs is None else [*inherited, jobs])
        self._serial += 1
        child.tell(
            Setup(
                self._settings,
                self._tenants.keys,
                self._counts.names,
                place,
                child.serial,
                self._engine is None,
                self._bound.fileno(),
                self._table,
                jobs,
                self._folder,
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
        if self._is_broken() or self._is_ending:
            return self._end_if_last()
        if code == NO_SUCCESSOR:
            return self._fail()
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
        if self._is_broken() or self._is_ending:
            return self._end_if_last()
        self._spawn(child.place)

    def _heard(self, child: _Child, message: FromChild) -> None:
        if isinstance(message, AskPage):
            self._start(self._page(child, message.question))
        elif isinstance(message, AskFrames):
            self._start(self._show(child, message))
        elif isinstance(message, Up):
            child.is_up = True
            up = sum(one.is_up for one in self._children.values())
            if not self._has_begun and not self._is_ending and up == self._settings.api_processes:
                self._has_begun = True
                self._counts.set_all_ready()
                self._begin()
        elif self._engine is not None:
            _count(message, self._engine.metrics)

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
            calls = counted(left, "call is", "calls are")
            log.info(f"{name}: taking no new work; {calls} under way." if left else f"{name}: stopping.")
        self._end(number, self._settings.drain_timeout if self._engine is not None else 0.0)

    async def _reload(self) -> None:
        """Keys and certificate are checked here, once for all processes."""
        has_keys = await reload_keys(self._tenants, self._settings, self._counts.add)
        if has_keys | (await reload_certificate(self._settings) is not None):
            for child in self._children.values():
                child.tell(Reload(self._tenants.keys, self._counts.names))

    def _fail(self) -> None:
        self._code = 1
        self._end(signal.SIGTERM, 0.0)

    def _end(self, number: int, seconds: float) -> None:
        """seconds: for calls that are under way."""
        if not self._is_ending:
            self._start(self._kill_late(seconds + ENDING_SECONDS))
            for listener in self._listeners:  # the last process that ends closes them
                listener.close()
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


def _count(message: Answered | NotAsked | JobsCounted | JobEnded | LinesAnswered, metrics: Metrics) -> None:
    match message:
        case Answered():
            metrics.observe_http(message.route, message.status, message.seconds)
        case NotAsked():
            metrics.refused(message.code)
        case JobsCounted():
            metrics.batch.jobs(message.by_status)
        case JobEnded():
            metrics.batch.ended(message.status)
        case LinesAnswered():
            metrics.batch.lines(message.outcome, message.count)


class _Child:
    """One process, and the socket that is its life."""

    def __init__(self, place: int, serial: int, inherited: Sequence[int]):
        """inherited: descriptors."""
        self.place, self.serial = place, serial
        self.started = time.monotonic()
        self.is_up = False
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "inflight.server.processes.child", str(theirs.fileno())]
        with theirs:
            handed_down = (theirs.fileno(), *inherited)
            self._process = subprocess.Popen(command, pass_fds=handed_down, stdin=subprocess.DEVNULL)
        self._control = Control(ours, decode_from_child)
        self.tell = self._control.tell

    async def listen(self, heard: Callable[[FromChild], None]) -> None:
        """Until it closes its end, or says what is no message."""
        try:
            await self._control.listen(heard)
        except ValueError as error:
            log.error(f"API process {self.place} said what is no message ({error}), and is killed.")
            self.kill()

    async def ended(self) -> int:
        """Its exit code; below 0: the signal that killed it. It has closed its end, and will not be long."""
        self._control.close()
        return await asyncio.to_thread(self._process.wait)

    def kill(self) -> None:
        self._process.kill()
