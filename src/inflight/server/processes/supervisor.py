"""The server's first process: starts the engine's process and the API processes, tells each how far the others are, and
starts those again that end.

It has neither engine nor HTTP. One event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from inflight.counted import counted
from inflight.server.call_counts import SharedCallCounts, shared_table
from inflight.server.jobs.clock import Clocks
from inflight.server.jobs.folder import DataDirectory
from inflight.server.jobs.storage import DataDirectoryError
from inflight.server.listening import url
from inflight.server.loader import LOADER, in_own_thread
from inflight.server.logs import Format
from inflight.server.model_pool.messages import EngineReady
from inflight.server.model_pool.worker import Worker, WorkerError
from inflight.server.processes.control import Control
from inflight.server.processes.engine_keeper import EngineKeeper
from inflight.server.processes.folder import private_folder
from inflight.server.processes.messages import (
    NO_SUCCESSOR,
    AdapterChanged,
    Adapters,
    AskFrames,
    AskPage,
    DataReady,
    FromChild,
    LoadAdapter,
    Lost,
    Model,
    Page,
    Ready,
    Reload,
    Setup,
    ShownFrames,
    Signal,
    ToChild,
    UnloadAdapter,
    Up,
    decode_from_child,
)
from inflight.server.reloading import can_reload, reload_certificate, reload_keys
from inflight.server.service_manager import ServiceManager
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenants

SHORT_LIFE = 10.0  # seconds; a process that ends sooner is not started anew at once
TRIES = 5  # short lives of one place, one after another, until the server ends
ENDING_SECONDS = 10.0  # that a process which is to end may take beyond its calls
ENGINE = "inflight.launch.engine_process"
# For API processes, whose memory is bodies and answers of up to megabytes: glibc gives large blocks back when they are
# freed, and keeps no heap of free memory for each thread.
MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

log = logging.getLogger("inflight.server")


class Supervisor:
    """Runs until a signal or a failure ends the server."""

    def __init__(
        self,
        settings: ServerSettings,
        tenants: Tenants,
        bound: socket.socket,
        engine_setup: Callable[[int, Path], bytes],
        ready: Callable[[EngineReady], None],
        *,
        version: str,
        log_format: Format,
        log_level: str,
        record: Path | None = None,
        engine: str = ENGINE,
        inherited: Sequence[int] = (),
    ):
        """Make a supervisor.

        Args:
            settings: Of the server.
            tenants: That may call it.
            bound: Listens. API processes inherit it: the connections that wait in it when one ends are taken by
                another, and no other server can have the port.
            engine_setup: Returns the first message to an engine's process. Is given how many were before it, and the
                folder of the sockets between the processes.
            ready: Called when the server takes calls for the first time.
            version: Of this package.
            log_format: Of all processes.
            log_level: Of all processes.
            record: The file that the engine writes its steps to.
            engine: The module that is run as the engine's process.
            inherited: Descriptors that it inherits.
        """
        self._settings, self._tenants, self._bound = settings, tenants, bound
        self._engine_setup, self._ready = engine_setup, ready
        self._version, self._record = version, record
        self._log_format: Format = log_format
        self._log_level = log_level
        self._engine_module, self._engine_inherited = engine, tuple(inherited)
        self._listeners = [bound]  # that are open while processes may be started
        self._data: DataDirectory | None = None
        self._table = shared_table()
        self._counts = SharedCallCounts(self._table, tenants.names, settings.api_processes)
        self._children: dict[int, _Child] = {}
        self._short_lives = [0] * settings.api_processes
        self._news: list[ToChild] = []  # that one which is started now has missed
        self._serial = self._signals = self._code = 0
        self._engine_ready: EngineReady | None = None  # the first one
        self._is_ending = self._has_begun = False
        self._manager = ServiceManager()
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self) -> int:
        """Return the exit code."""
        with private_folder() as self._folder:
            asyncio.run(self._run())
        return self._code

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._all_ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        if can_reload(self._settings, self._tenants):
            loop.add_signal_handler(signal.SIGHUP, lambda: self._start(self._reload()))
        elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._on_signal, signal.SIGHUP)
        if not self._claim_data():
            return
        self._keeper = EngineKeeper(
            partial(Worker, self._engine_module, self._engine_inherited),
            lambda before: self._engine_setup(before, self._folder),
            self._tell_all,
            self._dropped,
            self._on_engine_ready,
        )
        for place in range(self._settings.api_processes):
            self._spawn(place)
        if self._data is not None:
            self._start(self._prepare_data(self._data))
        keeping = self._start(self._keep_engine())
        await self._all_ended.wait()
        keeping.cancel()
        await self._keeper.worker.end()
        for task in self._tasks:
            task.cancel()

    # -- the data directory ---------------------------------------------------------------------------------------

    def _claim_data(self) -> bool:
        """Lock it, as long as any of the processes lives. Return False where it cannot be used."""
        try:
            if self._settings.data_dir is not None:
                self._data = DataDirectory(self._settings.data_dir).claim()
        except DataDirectoryError as error:
            log.error(str(error))
            self._code = 1
        return self._code == 0

    async def _prepare_data(self, data: DataDirectory) -> None:
        """Check it and bring it up to date; then the API processes may open it."""
        try:
            await in_own_thread(partial(data.prepare, Clocks()), LOADER)
        except DataDirectoryError as error:
            log.error(str(error))
            return self._fail()
        self._tell_all(DataReady())

    # -- the engine -----------------------------------------------------------------------------------------------

    async def _keep_engine(self) -> None:
        try:
            await self._keeper.run()
        except WorkerError as error:
            if str(error):
                log.error(str(error))
            self._fail()

    def _on_engine_ready(self, ready: EngineReady) -> None:
        self._engine_ready = self._engine_ready or ready

    async def _page(self, child: _Child, question: int) -> None:
        child.send(Page(question, await self._keeper.worker.metrics(), CONTENT_TYPE))

    async def _show(self, child: _Child, asked: AskFrames) -> None:
        child.send(ShownFrames(asked.question, await self._keeper.worker.shown(asked.data, asked.name) or b""))

    async def _change_adapter(self, child: _Child, asked: LoadAdapter | UnloadAdapter) -> None:
        def change(question: int) -> LoadAdapter | UnloadAdapter:
            if isinstance(asked, LoadAdapter):
                return LoadAdapter(question, asked.name, asked.path)
            return UnloadAdapter(question, asked.name)

        changed = await self._keeper.change_adapter(asked.name, change)
        error = "The engine is being started again; try again in a moment." if changed is None else changed.error
        child.send(AdapterChanged(asked.question, (), error, None if changed is None else changed.param))

    # -- processes ------------------------------------------------------------------------------------------------

    def _spawn(self, place: int) -> None:
        inherited = [self._bound.fileno(), self._table]
        if self._data is not None and self._data.lock is not None:
            inherited.append(self._data.lock)
        child = self._children[place] = _Child(place, self._serial, inherited)
        self._serial += 1
        child.send(
            Setup(
                self._settings,
                self._tenants.keys,
                self._counts.names,
                place,
                child.serial,
                not self._has_begun,
                self._bound.fileno(),
                self._table,
                self._folder,
                self._version,
                self._log_format,
                self._log_level,
                self._record,
            )
        )
        for message in self._news:
            child.send(message)
        self._start(self._watch(child))

    async def _watch(self, child: _Child) -> None:
        """Follow a process from its start to its end, and start another one."""
        await child.listen(partial(self._heard, child))
        code = await child.ended()
        left = self._counts.clear(child.place)
        self._keeper.worker.client_lost(str(child.serial))
        del self._children[child.place]
        if self._is_ending:
            return self._end_if_last()
        if code == NO_SUCCESSOR:
            return self._fail()
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        log.error(
            f"API process {child.place} ended {how}; its calls in flight ({left}) are aborted, and it is started anew."
        )
        short = not child.is_up or time.monotonic() - child.started < SHORT_LIFE
        self._short_lives[child.place] = self._short_lives[child.place] + 1 if short else 0
        if self._short_lives[child.place] >= TRIES:
            log.error(f"API process {child.place} ended {TRIES} times soon after its start; its messages stand above.")
            return self._fail()
        await asyncio.sleep(min(0.1 * 2 ** self._short_lives[child.place], 2.0) if short else 0.0)
        if self._is_ending:
            return self._end_if_last()
        self._spawn(child.place)

    def _heard(self, child: _Child, message: FromChild) -> None:
        match message:
            case AskPage():
                self._start(self._page(child, message.question))
            case AskFrames():
                self._start(self._show(child, message))
            case LoadAdapter() | UnloadAdapter():
                self._start(self._change_adapter(child, message))
            case Up():
                child.is_up = True
                self._begin_if_all_up()
            case _:
                self._keeper.worker.count(message)

    def _begin_if_all_up(self) -> None:
        up = sum(one.is_up for one in self._children.values())
        if self._is_ending or up < self._settings.api_processes:
            return
        self._counts.set_all_ready()
        self._manager.ready(url(self._settings, self._bound))
        if not self._has_begun:
            self._has_begun = True
            self._start(self._manager.keep_watchdog())
            assert self._engine_ready is not None, "they are up when they have a client of it"
            self._ready(self._engine_ready)

    def _dropped(self, name: str) -> None:
        for child in self._children.values():
            if str(child.serial) == name:
                child.kill()

    def _tell_all(self, message: ToChild) -> None:
        gone: tuple[type[ToChild], ...] = (type(message),)
        if isinstance(message, Lost):
            gone = (Model, Ready, Adapters, Lost)
            self._counts.set_all_ready(False)
            self._manager.status("Starting the engine again.")
            for child in self._children.values():
                child.is_up = False
        self._news = [one for one in self._news if not isinstance(one, gone)] + [message]
        for child in self._children.values():
            child.send(message)

    # -- the end --------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        """Have each process let its calls finish, and end."""
        self._signals += 1
        if self._signals == 1 and not self._is_ending:
            name, left = signal.Signals(number).name, self._counts.everywhere
            calls = counted(left, "call is", "calls are")
            log.info(f"{name}: taking no new work; {calls} under way." if left else f"{name}: stopping.")
        self._end(number, self._settings.drain_timeout if self._has_begun else 0.0)

    async def _reload(self) -> None:
        """Check keys and certificate once, for all processes."""
        self._manager.reloading()
        has_keys = await reload_keys(self._tenants, self._settings, self._counts.add)
        if has_keys | reload_certificate(self._settings):
            for child in self._children.values():
                child.send(Reload(self._tenants.keys, self._counts.names))
        self._manager.ready(url(self._settings, self._bound))

    def _fail(self) -> None:
        self._code = 1
        self._end(signal.SIGTERM, 0.0)

    def _end(self, number: int, seconds: float) -> None:
        """Tell all processes to end. seconds: for calls in flight."""
        if not self._is_ending:
            self._manager.stopping()
            self._start(self._kill_late(seconds + ENDING_SECONDS))
            for listener in self._listeners:  # the last process that ends closes them
                listener.close()
        self._is_ending = True
        for child in self._children.values():
            child.send(Signal(number))
        self._end_if_last()

    def _end_if_last(self) -> None:
        if not self._children:
            self._all_ended.set()

    async def _kill_late(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        for child in self._children.values():
            log.error(f"API process {child.place} has not ended in time, and is killed.")
            child.kill()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.critical("the server stops by a fault", exc_info=fault)
            self._fail()


class _Child:
    """An API process, and the socket to it."""

    def __init__(self, place: int, serial: int, inherited: Sequence[int]):
        """Start the process. inherited: descriptors."""
        self.place, self.serial = place, serial
        self.started = time.monotonic()
        self.is_up = False
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "inflight.server.processes.child", str(theirs.fileno())]
        with theirs:
            handed_down = (theirs.fileno(), *inherited)
            env = {**MALLOC, **os.environ}
            self._process = subprocess.Popen(command, pass_fds=handed_down, stdin=subprocess.DEVNULL, env=env)
        self._control = Control(ours, decode_from_child)
        self.send = self._control.send

    async def listen(self, heard: Callable[[FromChild], None]) -> None:
        """Read messages until it closes its end, or sends what is no message."""
        try:
            await self._control.listen(heard)
        except ValueError as error:
            log.error(f"API process {self.place} sent what is no message ({error}), and is killed.")
            self.kill()

    async def ended(self) -> int:
        """Return its exit code; below 0: the signal that killed it. It has closed its end, and ends soon."""
        self._control.close()
        return await asyncio.to_thread(self._process.wait)

    def kill(self) -> None:
        self._process.kill()
