"""Run an application by uvicorn, with the server's limits of connections, until it is stopped."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette

from inflight.server.ingress.addresses import Networks
from inflight.server.ingress.connections import Connection, Connections
from inflight.server.listening import possible_connections
from inflight.server.settings import ServerSettings

log = logging.getLogger("inflight.server")


class HttpServer:
    """uvicorn, which serves one application."""

    def __init__(self, settings: ServerSettings, tls: ssl.SSLContext | None):
        self._settings, self._tls = settings, tls
        self._connections = _connections(settings)
        self._server: _Server | None = None

    def run(
        self,
        app: Starlette,
        bound: socket.socket,
        lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]],
    ) -> None:
        """Serve until `stop`.

        Args:
            bound: Listens.
            lifespan: Entered in the event loop before connections are taken, and left after the last one.
        """
        app.router.lifespan_context = lifespan
        settings, tls = self._settings, self._tls
        proxies = ["*"] if settings.uds is not None else list(settings.trusted_proxies)
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http=cast(Any, partial(Connection, connections=self._connections)),
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=proxies,
            timeout_keep_alive=cast(int, settings.http_keep_alive),  # a time like any other
            timeout_graceful_shutdown=2,
            ssl_context_factory=None if tls is None else lambda *_: tls,
        )
        self._server = _Server(config)
        self._server.run(sockets=[bound])

    def stop(self) -> None:
        """Take no more connections, and end."""
        self._connections.ended = True
        if self._server is not None:
            self._server.should_exit = True


def _connections(settings: ServerSettings) -> Connections:
    limit = possible_connections(settings.max_connections)
    if limit < settings.max_connections:
        log.warning(
            f"The system's limit of open files leaves room for {limit:,} connections, fewer than --max-connections "
            f"{settings.max_connections:,}; raise it (ulimit -n), or lower the option."
        )
    proxies = Networks(settings.trusted_proxies)
    return Connections(limit, settings.connections_of_one(limit), proxies, settings.header_timeout)


class _Server(uvicorn.Server):
    """Leaves signals to the process: uvicorn would stop listening at once, and no client would hear why."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
