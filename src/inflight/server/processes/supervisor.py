"""The server's first process: starts engines' processes and API processes, reports to each how far the others are,
and starts those again that end.

It has neither engine nor HTTP. One event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from inflight.counted import counted
from inflight.server.call_counts import SharedCallCounts, shared_memory
from inflight.server.jobs.clock import Clocks
from inflight.server.jobs.folder import DataDirectory
from inflight.server.jobs.storage import DataDirectoryError
from inflight.server.listening import url
from inflight.server.loader import LOADER, in_own_thread
from inflight.server.processes.control import ControlledProcess
from inflight.server.processes.folder import private_folder
from inflight.server.processes.messages import (
    NO_SUCCESSOR,
    Adapters,
    Answer,
    DataReady,
    FromChild,
    Lost,
    Model,
    Notice,
    PoolChanged,
    Question,
    Ready,
    Reload,
    ServerSetup,
    Setup,
    Signal,
    ToChild,
    Up,
    decode_from_child,
)
from inflight.server.processes.short_lives import MAX_SHORT_LIVES, SHORT_LIFE, ShortLives
from inflight.server.processes.worker import WorkerError
from inflight.server.processes.worker_messages import EngineReady
from inflight.server.reloading import can_reload, reload_certificate, reload_keys
from inflight.server.service_manager import ServiceManager
from inflight.server.tenants import Tenants
from inflight.server.tls import CertificateInForce

ENDING_SECONDS = 10.0  # that a process which is to end may take beyond its calls
# For API processes, whose memory is bodies and answers of up to megabytes: glibc gives large blocks back when they are
# freed, and keeps no heap of free memory for each thread.
MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}

OF_ENGINE = (Model, Ready)  # messages about one that is there
RESTARTING = "Starting the engine again."

log = logging.getLogger("inflight.server")


class Engines(Protocol):
    """The engines of a server: one, or those of several models. Of the supervisor's event loop."""

    @property
    def first_ready(self) -> EngineReady | None:
        """The start of a single engine; None where there are several."""

    async def run(self) -> None:
        """Keep them running. Raises WorkerError where that cannot be; its sentence is empty where the log has it."""

    async def end(self) -> None:
        """End their processes."""

    def answer(self, client: str, question: Question) -> Awaitable[Answer]:
        """Answer a question of an API process. A notice about it may be `heard` before the answer is awaited."""

    def heard(self, client: str, notice: Notice) -> None:
        """Take what an API process reports."""

    def client_lost(self, client: str) -> None:
        """End the calls of an API process that has ended."""


# Given the folder of the sockets between the processes, a function that sends a message to all API processes and to
# those that are started later, and one to be called with the name of an API process that an engine dropped.
MakeEngines = Callable[[Path, Callable[[ToChild], None], Callable[[str], None]], Engines]


class Supervisor:
    """Runs until a signal or a failure ends the server."""

    def __init__(
        self,
        server: ServerSetup,
        tenants: Tenants,
        bound: socket.socket,
        make_engines: MakeEngines,
        ready: Callable[[EngineReady | None], None],
    ):
        """Make a supervisor.

        Args:
            server: Sent to each API process.
            tenants: That may call the server.
            bound: Listens. API processes inherit it: the connections that wait in it when one ends are taken by
                another, and no other server can have the port.
            make_engines: Called in the event loop.
            ready: Called when the server takes calls for the first time, with the engines' `first_ready`.

        Raises:
            TlsError: The certificate cannot be used.
        """
        settings = server.settings
        self._server, self._settings, self._tenants, self._bound = server, settings, tenants, bound
        self._make_engines, self._ready = make_engines, ready
        self._address = url(settings, bound)
        self._certificate = None if settings.ssl_certfile is None else CertificateInForce(settings)
        self._listeners = [bound]  # that are open while processes may be started
        self._data: DataDirectory | None = None
        self._table = shared_memory()
        self._counts = SharedCallCounts(self._table, tenants.names, settings.api_processes)
        self._children: dict[int, _Child] = {}
        self._lives = [ShortLives() for _ in range(settings.api_processes)]
        self._missed: list[ToChild] = []  # by a process that is started now
        self._engine_serial: int | None = None  # of the only engine, from its `Model` to its end
        self._serial = self._signals = self._code = 0
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
        self._engines = self._make_engines(self._folder, self._announce, self._dropped)
        for index in range(self._settings.api_processes):
            self._spawn(index)
        if self._data is not None:
            self._start(self._prepare_data(self._data))
        keeping = self._start(self._keep_engines())
        await self._all_ended.wait()
        keeping.cancel()
        await self._engines.end()
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
        self._announce(DataReady())

    # -- engines --------------------------------------------------------------------------------------------------

    async def _keep_engines(self) -> None:
        try:
            await self._engines.run()
        except WorkerError as error:
            if str(error):
                log.error(str(error))
            self._fail(error.exit_code)

    # -- processes ------------------------------------------------------------------------------------------------

    def _spawn(self, index: int) -> None:
        inherited = [self._bound.fileno(), self._table]
        certificate = () if self._certificate is None else self._certificate.descriptors
        inherited += certificate
        if self._data is not None and self._data.lock is not None:
            inherited.append(self._data.lock)
        child = self._children[index] = _Child(index, self._serial, inherited)
        self._serial += 1
        child.send(
            Setup(
                server=self._server,
                keys=self._tenants.keys,
                tenants=self._counts.names,
                index=index,
                serial=child.serial,
                early=not self._has_begun or not any(one.is_up for one in self._children.values()),
                listening=self._bound.fileno(),
                counts=self._table,
                certificate=certificate,
                folder=self._folder,
            )
        )
        for message in self._missed:
            child.send(message)
        self._start(self._watch(child))

    async def _watch(self, child: _Child) -> None:
        """Follow a process from its start to its end, and start another one."""
        await child.listen(partial(self._heard, child))
        code = await child.ended()
        left = self._counts.clear(child.index)
        self._engines.client_lost(child.name)
        del self._children[child.index]
        if self._is_ending:
            return self._end_if_last()
        if code == NO_SUCCESSOR and not self._has_begun:
            return self._fail()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        log.error(f"API process {child.index} {how}; its calls in flight ({left}) are aborted.")
        if (pause := self._lives[child.index].end()) is None:
            log.error(
                f"API process {child.index} ended {MAX_SHORT_LIVES} times before it was ready or within "
                f"{SHORT_LIFE:g} s after; see its messages above."
            )
            return self._fail()
        log.info(f"API process {child.index} is restarted.")
        await asyncio.sleep(pause)
        if self._is_ending:
            return self._end_if_last()
        self._spawn(child.index)

    def _heard(self, child: _Child, message: FromChild) -> None:
        if isinstance(message, Up):
            if message.serial == self._engine_serial:  # else that engine has ended meanwhile
                child.is_up = True
                self._lives[child.index].ready()
                self._begin_if_all_up()
        elif isinstance(message, Question):
            self._start(self._answer(child, self._engines.answer(child.name, message)))
        else:
            self._engines.heard(child.name, message)

    async def _answer(self, child: _Child, answer: Awaitable[Answer]) -> None:
        child.send(await answer)

    @property
    def _are_all_up(self) -> bool:
        """Return whether all API processes take calls, and may."""
        up = sum(one.is_up for one in self._children.values())
        return not self._is_ending and up == self._settings.api_processes

    def _begin_if_all_up(self) -> None:
        if not self._are_all_up:
            return
        self._counts.set_all_ready()
        self._manager.ready(self._address)
        if not self._has_begun:
            self._has_begun = True
            self._start(self._manager.keep_watchdog())
            self._ready(self._engines.first_ready)

    def _dropped(self, name: str) -> None:
        for child in self._children.values():
            if child.name == name:
                child.kill()

    def _announce(self, message: ToChild) -> None:
        """Send a message to all API processes, and keep it for those to come."""
        replaced: tuple[type[ToChild], ...] = (type(message),)
        if isinstance(message, Lost):
            replaced = OF_ENGINE
            if not message.name:  # the only engine
                self._engine_serial = None
                self._counts.set_all_ready(False)
                self._manager.status(RESTARTING)
                for child in self._children.values():
                    child.is_up = False
        model = _model_of(message)
        if isinstance(message, Model) and not model:
            self._engine_serial = message.serial
        self._missed = [one for one in self._missed if not (isinstance(one, replaced) and _model_of(one) == model)]
        if isinstance(message, Adapters):
            known = message.adapters
            self._missed = [replace(one, adapters=known) if isinstance(one, Ready) else one for one in self._missed]
        elif isinstance(message, PoolChanged):
            self._missed.insert(0, message)  # before what is said of its models
        elif not isinstance(message, Lost):
            self._missed.append(message)
        for child in self._children.values():
            child.send(message)

    # -- the end --------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        """Have each process let its calls finish, and end."""
        self._signals += 1
        if self._signals == 1 and not self._is_ending:
            name, left = signal.Signals(number).name, self._counts.everywhere
            calls = counted(left, "call is", "calls are")
            log.info(f"{name}: taking no new work; {calls} in flight." if left else f"{name}: stopping.")
        self._end(number, self._settings.drain_timeout if self._has_begun else 0.0)

    async def _reload(self) -> None:
        """Check keys and certificate once, for all processes."""
        if self._is_ending:
            return
        if has_begun := self._has_begun:
            self._manager.reloading()
        has_keys = await reload_keys(self._tenants, self._settings, self._counts.add)
        if has_keys | reload_certificate(self._certificate):
            for child in self._children.values():
                child.send(Reload(self._tenants.keys, self._counts.names))
        if has_begun and not self._is_ending:
            self._manager.ready(self._address)  # the reload has ended
            if not self._are_all_up:
                self._manager.status(RESTARTING)

    def _fail(self, code: int = 1) -> None:
        self._code = code
        for _ in range(2):  # the second signal ends the calls in flight
            self._end(signal.SIGTERM, 0.0)

    def _end(self, number: int, seconds: float) -> None:
        """Have all processes end. seconds: for calls in flight."""
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
            log.error(f"API process {child.index} did not exit in time and was killed.")
            child.kill()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.critical("the server stops after an internal error", exc_info=fault)
            self._fail()


def _model_of(message: ToChild) -> str:
    """Return the name of the model that a message is about, where there are several."""
    return message.name if isinstance(message, Model | Ready | Lost) else ""


class _Child(ControlledProcess[FromChild]):
    """An API process.

    Attributes:
        name: By which engines know it; no other one has the same.
    """

    def __init__(self, index: int, serial: int, inherited: Sequence[int]):
        """Start the process. inherited: descriptors."""
        super().__init__("inflight.server.processes.child", decode_from_child, inherited, {**MALLOC, **os.environ})
        self.index, self.serial, self.name = index, serial, str(serial)
        self.is_up = False
        self.send = self._control.send

    async def listen(self, heard: Callable[[FromChild], None]) -> None:
        """Read messages until it closes its end, or sends what is no message."""
        try:
            await self._control.listen(heard)
        except ValueError as error:
            log.error(f"API process {self.index} sent an invalid message ({error}) and was killed.")
            self.kill()

    async def ended(self) -> int:
        """Return its exit code; below 0: the signal that killed it. It has closed its end, and is killed if it does not
        end soon."""
        self._control.close()
        late = asyncio.get_running_loop().call_later(ENDING_SECONDS, self.kill)
        code = await asyncio.to_thread(self._process.wait)
        late.cancel()
        return code
