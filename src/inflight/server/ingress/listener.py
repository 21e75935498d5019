"""The listening socket: takes connections in handfuls, or in turn with other processes that listen on it.

The event loop's own server takes one a round. Rounds are long while many connections send, and then a client waits for
seconds behind those who came before it. Of processes that share a socket the system wakes all for each connection, and
the quickest would have most of them: one that has more than another leaves it a moment to come first.
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
_GIVE_WAY_SECONDS = 0.001  # the event loop's shortest; a new connection's first request takes as long


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
        gives_way: Callable[[int], bool],
    ):
        """most_handshakes: of TLS, under way at once; who has not finished his is not counted as a connection yet.
        gives_way: told how many connections are being opened; whether another process should take the next one."""
        self._socket = bound
        self._connection = connection
        self._refusals = refusals
        self._tls = tls
        self._handshake_seconds = None if tls is None else handshake_seconds
        self._most_handshakes, self._gives_way = most_handshakes, gives_way
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        bound.setblocking(False)
        self._loop.add_reader(bound, self._accept)

    def use(self, tls: ssl.SSLContext) -> None:
        """Open new connections with another certificate."""
        self._tls = tls

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._socket)

    async def wait_closed(self) -> None:
        for task in tuple(self._opening):
            task.cancel()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            if self._gives_way(len(self._opening)):
                return self._rest(_GIVE_WAY_SECONDS)
            if not self._take():
                return

    def _rest(self, seconds: float) -> None:
        self._loop.remove_reader(self._socket)
        self._pause = self._loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        """With one connection at least, which nobody has taken meanwhile."""
        self._pause = None
        self._loop.add_reader(self._socket, self._accept)
        self._take()

    def _take(self) -> bool:
        """One connection; whether there may be more."""
        try:
            accepted, _address = self._socket.accept()
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionError:  # it went away while it waited
            return True
        except OSError as error:
            self._refusals.count(f"times that no connection could be taken ({error.strerror})")
            self._rest(_PAUSE_SECONDS)
            return False
        if self._tls is not None and len(self._opening) >= self._most_handshakes:
            self._refusals.count("connections refused: too many TLS handshakes are under way")
            accepted.close()
            return True
        accepted.setblocking(False)
        task = self._loop.create_task(self._open(accepted))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return True

    async def _open(self, accepted: socket.socket) -> None:
        """Until the connection stands, with TLS until its handshake is done."""
        with contextlib.suppress(OSError):  # a handshake that failed is the client's affair; TLS errors are OSErrors
            await self._loop.connect_accepted_socket(
                self._connection, accepted, ssl=self._tls, ssl_handshake_timeout=self._handshake_seconds
            )
