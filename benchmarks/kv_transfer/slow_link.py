"""A link between two sockets of one host that lets so many bytes through in a second, in a process of its own.

Bytes towards the client are let through at the link's rate, after a delay of none; those the other way, which are
few, as they come.
"""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

_PIECE = 32 << 10  # bytes
_BUFFER = 128 << 10  # of the socket that is read from, so that not more than that is in flight


@contextmanager
def slow_link(target: tuple[str, int], rate: float) -> Iterator[tuple[str, int]]:
    """An address behind which the target is. rate: bytes a second."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(target, rate, there), daemon=True)
    process.start()
    try:
        yield here.recv()
    finally:
        process.kill()
        process.join()


def _serve(target: tuple[str, int], rate: float, connection: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection.send(listener.getsockname()[:2])
        while True:
            near, _ = listener.accept()
            far = socket.socket()
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            far.connect(target)
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_pass_on, args=(far, near, rate), daemon=True).start()
            threading.Thread(target=_pass_on, args=(near, far, float("inf")), daemon=True).start()


def _pass_on(source: socket.socket, into: socket.socket, rate: float) -> None:
    due = 0.0
    while piece := source.recv(_PIECE):
        due = max(due, time.perf_counter()) + len(piece) / rate
        if (wait := due - time.perf_counter()) > 0:
            time.sleep(wait)
        into.sendall(piece)
    into.close()
