"""The server as a process: the socket, loading beside answering, signals, draining, the end.

Knows uvicorn and the order of things. What is loaded, the caller hands in as a function, so that this package need not
know how an engine is built.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextvars import Context
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette

from inflight.counted import counted
from inflight.server.ingress.addresses import Networks
from inflight.server.ingress.connections import Connection, Connections
from inflight.server.listening import possible_connections
from inflight.server.loader import leave_loader, log_failure
from inflight.server.reloading import can_reload, reload_certificate, reload_keys
from inflight.server.served import ServedModels
from inflight.server.service import Service
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenants

Open = Callable[[Callable[[str], None]], Awaitable[ServedModels]]  # given a function to report its progress


log = logging.getLogger("inflight.server")


def _connections(settings: ServerSettings) -> Connections:
    limit = possible_connections(settings.max_connections)
    if limit < settings.max_connections:
        log.warning(
            f"The system's limit of open files leaves room for {limit:,} connections, fewer than --max-connections "
            f"{settings.max_connections:,}; raise it (ulimit -n), or lower the option."
        )
    proxies = Networks(settings.trusted_proxies)
    return Connections(limit, settings.connections_of_one(limit), proxies, settings.header_timeout)


class Process:
    """Runs the application until a signal; returns the exit code.

    begin: awaited when the engine is ready (batch jobs go on). end: awaited before the engine is closed. hears_signals:
    the system's; without, the owner calls `on_signal`. early: take connections while the engine loads, to
    say so.
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
    ):
        self._service, self._tenants = service, tenants
        self._open_models = open
        self._begin, self._end = begin, end
        self._hears_signals, self._early = hears_signals, early
        self._server: _Server | None = None
        self._tls: ssl.SSLContext | None = None
        self._signals = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._code = 0

    def run(self, app: Starlette, bound: socket.socket, tls: ssl.SSLContext | None) -> int:
        app.router.lifespan_context = self._lifespan
        settings, self._tls = self._service.settings, tls
        self._connections = _connections(settings)
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http=cast(Any, partial(Connection, connections=self._connections)),
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
        self._server = _Server(config)
        self._server.run(sockets=[bound])
        if self._service.state == "loading":
            leave_loader(self._code)
        return self._code

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.loop = asyncio.get_running_loop()
        if self._hears_signals and threading.current_thread() is threading.main_thread():
            self._hear_signals()
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
            gc.collect()
            gc.freeze()  # what is there now stays, and the collector need not look at it again
            self._service.ready(models)
            await self._begin()
        except Exception as error:
            return self._fail(str(error), error)
        if self._hears_signals:
            self.start(self._watch(models))

    def _loading(self, doing: str) -> None:
        self._service.doing = doing

    async def _watch(self, models: ServedModels) -> None:
        """End when the engine has stopped, so that the service manager starts the server again."""
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
        self._connections.ended = True
        if self._server is not None:
            self._server.should_exit = True

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

    def _hear_signals(self) -> None:
        """Drain on SIGINT and SIGTERM. SIGHUP has files read again; where no option names one, it ends the server as
        SIGTERM does, unless it is ignored (nohup)."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self.loop.add_signal_handler(number, self.on_signal, number)
        if can_reload(self._service.settings, self._tenants):
            self.loop.add_signal_handler(signal.SIGHUP, lambda: self.start(self._reload()))
        elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self.loop.add_signal_handler(signal.SIGHUP, self.on_signal, signal.SIGHUP)

    async def _reload(self) -> None:
        await reload_keys(self._tenants, self._service.settings)
        reload_certificate(self._service.settings, self._tls)

    def reload_certificate(self) -> None:
        """Open new connections with the certificate as its files are now."""
        reload_certificate(self._service.settings, self._tls, logs=False)

    async def _drain(self, name: str) -> None:
        left = self._service.under_way
        if self._hears_signals:
            calls = counted(left, "call is", "calls are")
            log.info(f"{name}: taking no new work; {calls} in flight." if left else f"{name}: stopping.")
        if ended := await self._service.drain():
            log.info(f"{counted(ended, 'call was', 'calls were')} not done within the drain timeout, and ended.")
        self._stop()


class _Server(uvicorn.Server):
    """Leaves signals to the process: uvicorn would stop listening at once, and no client would hear why."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
