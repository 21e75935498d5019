"""The server as a process: the socket, loading beside answering, signals, draining, the end.

Knows uvicorn and the order of things. What is loaded, the caller hands in as a function, so that this package need not
know how an engine is built.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextvars import Context
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette

from inflight.counted import counted
from inflight.server.heap import give_back, settled
from inflight.server.ingress.addresses import Networks
from inflight.server.ingress.connection import Connection
from inflight.server.ingress.connections import ConnectionLimits, Connections
from inflight.server.ingress.descriptors import possible_connections, raise_descriptor_limit
from inflight.server.ingress.listener import Listener
from inflight.server.ingress.refusals import Refusals
from inflight.server.loader import SWITCH_SECONDS, leave_loader, log_failure
from inflight.server.reloading import can_reload, reload_certificate, reload_keys
from inflight.server.served import ServedModels
from inflight.server.service import Service
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenants

Open = Callable[[Callable[[str], None]], Awaitable[ServedModels]]  # given a function to report its progress


log = logging.getLogger("inflight.server")


def _limits(settings: ServerSettings) -> ConnectionLimits:
    """Fewer connections than asked for, where the system gives fewer descriptors."""
    descriptors = raise_descriptor_limit()
    connections = min(settings.max_connections, possible_connections(descriptors))
    if connections < settings.max_connections:
        log.warning(
            f"The system lets a process have {descriptors:,} open files: this one takes {connections:,} connections, "
            f"fewer than --max-connections {settings.max_connections:,}; raise it (ulimit -n), or lower the option."
        )
    return ConnectionLimits(
        head_seconds=settings.header_timeout,
        connections=connections,
        per_address=settings.connections_of_one(connections),
        trusted=Networks(settings.trusted_proxies),
    )


class Process:
    """Runs the application until it is told to stop; returns the exit code.

    begin: awaited when the engine is ready (batch jobs go on). end: awaited before the engine is closed. hears_signals:
    the system's; without, `on_signal` is called by whoever does. early: take connections while the engine loads, to
    say so. gives_way: told how many connections there are; whether another process should take the next one.
    """

    def __init__(
        self,
        service: Service,
        tenants: Tenants,
        open: Open,
        begin: Callable[[], Awaitable[None]],
        end: Callable[[], Awaitable[None]],
        *,
        hears_signals: bool = True,
        early: bool = True,
        gives_way: Callable[[int], bool] = lambda connections: False,
    ):
        self._service, self._tenants = service, tenants
        self._open_models = open
        self._begin, self._end = begin, end
        self._hears_signals, self._early, self._gives_way = hears_signals, early, gives_way
        self._server: _Server | None = None
        self._signals = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._code = 0
        self._settled = contextlib.ExitStack()

    def run(self, app: Starlette, bound: socket.socket, tls: ssl.SSLContext | None) -> int:
        app.router.lifespan_context = self._lifespan
        sys.setswitchinterval(SWITCH_SECONDS)
        settings = self._service.settings
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http="httptools",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=bool(settings.trusted_proxies),
            forwarded_allow_ips=list(settings.trusted_proxies),
            timeout_keep_alive=cast(int, settings.http_keep_alive),  # a time like any other
            timeout_graceful_shutdown=2,
            ssl_context_factory=None if tls is None else lambda *_: tls,
        )
        on_signal = self.on_signal if self._hears_signals else _ignore
        self._server = _Server(config, on_signal, Connections(_limits(settings), Refusals()), self._gives_way)
        self._server.run(sockets=[bound])
        self._settled.close()
        if self._service.state == "loading":
            leave_loader(self._code)
        return self._code

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.loop = asyncio.get_running_loop()
        if self._hears_signals and threading.current_thread() is threading.main_thread():
            self._hear_hangup()
        opening = self.start(self._open())
        if not self._early:
            await opening
        try:
            yield
        finally:
            await self._end()
            for task in self._tasks:
                task.cancel()
            if self._service.loaded is not None:
                await self._service.loaded.close()

    async def _open(self) -> None:
        try:
            models = await self._open_models(self._loading)
            self._settled.enter_context(settled())
            self._service.ready(models)
            await self._begin()
        except Exception as error:
            return self._fail(str(error), error)
        if self._hears_signals:
            self.start(self._watch(models))
        self.start(give_back())

    def _loading(self, doing: str) -> None:
        self._service.doing = doing

    async def _watch(self, models: ServedModels) -> None:
        """An engine that broke down answers nobody any more: end, so that whoever runs the server starts it anew."""
        while (stopped := models.stopped) is None:
            await asyncio.sleep(1.0)
        self._fail(stopped, None)

    def fail(self, why: str) -> None:
        """End, with calls in flight, since no engine is left."""
        self._fail(why, None)

    def _fail(self, why: str, error: Exception | None) -> None:
        self._service.fail(why)
        log_failure(why, error)
        self._code = 1
        self._stop()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _stop(self) -> None:
        if self._server is not None:
            self._server.end()

    # -- signals --------------------------------------------------------------------------------------------------

    def on_signal(self, number: int) -> None:
        """In any thread. The first asks what runs to finish, the second does not wait for it."""
        self._signals += 1
        if self._service.state in ("loading", "failed"):
            self._stop()
        elif self._signals == 1:
            drain = partial(self._drain, signal.Signals(number).name)
            self.loop.call_soon_threadsafe(lambda: self.start(drain()), context=Context())  # of no request
        else:
            self.loop.call_soon_threadsafe(self._service.hurry)

    def _hear_hangup(self) -> None:
        """SIGHUP has files read again; where no option names one, it ends the server as SIGTERM does, unless it
        is ignored (nohup)."""
        if can_reload(self._service.settings, self._tenants):
            self.loop.add_signal_handler(signal.SIGHUP, lambda: self.start(self._reload()))
        elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self.loop.add_signal_handler(signal.SIGHUP, self.on_signal, signal.SIGHUP)

    async def _reload(self) -> None:
        await reload_keys(self._tenants, self._service.settings)
        self.use(await reload_certificate(self._service.settings))

    def use(self, tls: ssl.SSLContext | None) -> None:
        """Open new connections with another certificate; None: there is none."""
        if tls is not None and self._server is not None:
            self._server.use(tls)

    async def _drain(self, name: str) -> None:
        left = self._service.under_way
        if self._hears_signals:
            calls = counted(left, "call is", "calls are")
            log.info(f"{name}: taking no new work; {calls} under way." if left else f"{name}: stopping.")
        if ended := await self._service.drain():
            log.info(f"{counted(ended, 'call was', 'calls were')} not done within the drain timeout, and ended.")
        self._stop()


def _ignore(number: int) -> None:
    """Somebody else hears it."""


class _Server(uvicorn.Server):
    """Leaves signals to the process: uvicorn would stop listening at once, and nobody would hear why."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_signal: Callable[[int], None],
        connections: Connections,
        gives_way: Callable[[int], bool],
    ):
        super().__init__(config)
        self._on_signal = on_signal
        self._connections, self._gives_way = connections, gives_way
        self._ending = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, with connections of our own."""
        await self.lifespan.startup()
        loop, config, connections = asyncio.get_running_loop(), self.config, self._connections

        def connection() -> Connection:
            return Connection(
                connections=connections, config=config, server_state=self.server_state, app_state={}, _loop=loop
            )

        limits = connections.limits
        listeners = [
            Listener(
                one,
                connection,
                connections.refusals,
                tls=config.ssl,
                handshake_seconds=limits.head_seconds,
                most_handshakes=max(16, limits.connections // 4),
                gives_way=lambda opening: self._gives_way(len(connections) + opening),
            )
            for one in sockets or ()
        ]
        self.servers = cast(list[asyncio.base_events.Server], listeners)
        self.started = True

    async def main_loop(self) -> None:
        """uvicorn looks ten times a second whether to end. This one is woken for that, so that it sleeps when idle;
        once a second the date in the answers' headers goes on."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), 1.0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._connections.end()
        await super().shutdown(sockets)

    def use(self, tls: ssl.SSLContext) -> None:
        """Open new connections with another certificate."""
        for listener in cast(list[Listener], self.servers):
            listener.use(tls)

    def end(self) -> None:
        """From anywhere in this thread, a signal's handler too."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ending.set)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._on_signal(sig)
