"""Run HTTP in an API process: the socket, loading beside answering, draining, the end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import ssl
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
from inflight.server.reloading import reload_certificate
from inflight.server.served import ServedModels
from inflight.server.service import Service
from inflight.server.settings import ServerSettings

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
    """Runs the application until `on_signal` or a failure ends it."""

    def __init__(
        self,
        service: Service,
        open: Open,
        begin: Callable[[], Awaitable[None]],
        end: Callable[[], Awaitable[None]],
        *,
        early: bool,
    ):
        """Make a process.

        Args:
            open: Loads the models.
            begin: Awaited when the models are ready (batch jobs go on).
            end: Awaited before the models are closed.
            early: Take connections while the models load, to say so.
        """
        self._service = service
        self._open_models = open
        self._begin, self._end = begin, end
        self._early = early
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
            self._fail(str(error), error)

    def _loading(self, doing: str) -> None:
        self._service.doing = doing

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

    def on_signal(self) -> None:
        """Let calls finish and end on the first signal; do not wait for them on the second."""
        self._signals += 1
        if self._service.state in ("loading", "failed"):
            self._stop()
        elif self._signals == 1:
            self.loop.call_soon(lambda: self.start(self._drain()), context=Context())  # of no request
        else:
            self._service.hurry()

    def reload_certificate(self) -> None:
        """Open new connections with the certificate as its files are now."""
        reload_certificate(self._service.settings, self._tls, logs=False)

    async def _drain(self) -> None:
        if ended := await self._service.drain():
            log.info(f"{counted(ended, 'call was', 'calls were')} not done within the drain timeout, and ended.")
        self._stop()


class _Server(uvicorn.Server):
    """Leaves signals to the process: uvicorn would stop listening at once, and no client would hear why."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
