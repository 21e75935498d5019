"""The listening socket: takes connections in handfuls.

The event loop's own server takes one a round. Rounds are long while many connections send, and then a client waits for
seconds behind those who came before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

from inflight.server.ingress.refusals import Refusals

_AT_ONCE = 64  # some milliseconds
_PAUSE_SECONDS = 0.5  # when the system has no descriptor left


class Listener:
    """Has the verbs of a server of asyncio that uvicorn calls."""

    def __init__(
        self,
        bound: socket.socket,
        connection: Callable[[], asyncio.Protocol],
        refusals: Refusals,
        *,
        tls: ssl.SSLContext | None,
        handshake_seconds: float,
        most_handshakes: int,
    ):
        """most_handshakes: of TLS, under way at once; who has not finished his is not counted as a connection yet."""
        self._socket = bound
        self._connection = connection
        self._refusals = refusals
        self._tls = tls
        self._handshake_seconds = None if tls is None else handshake_seconds
        self._most_handshakes = most_handshakes
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        bound.setblocking(False)
        self._listen()

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._socket)

    async def wait_closed(self) -> None:
        for task in tuple(self._opening):
            task.cancel()

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, _address = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:  # it went away while it waited
                continue
            except OSError as error:
                self._refusals.count(f"times that no connection could be taken ({error.strerror})")
                self._loop.remove_reader(self._socket)
                self._pause = self._loop.call_later(_PAUSE_SECONDS, self._listen)
                return
            if self._tls is not None and len(self._opening) >= self._most_handshakes:
                self._refusals.count("connections refused: too many TLS handshakes are under way")
                accepted.close()
                continue
            accepted.setblocking(False)
            task = self._loop.create_task(self._open(accepted))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket) -> None:
        """Until the connection stands, with TLS until its handshake is done."""
        with contextlib.suppress(OSError):  # a handshake that failed is the client's affair; TLS errors are OSErrors
            await self._loop.connect_accepted_socket(
                self._connection, accepted, ssl=self._tls, ssl_handshake_timeout=self._handshake_seconds
            )
