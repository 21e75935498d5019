"""A ZMQ socket on an event loop: messages are sent at once or not at all, and received as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import zmq

MAX_QUEUED = 2_000  # messages that wait for a peer: at one per step, many seconds without a read
_BATCH = 32  # messages, before other callbacks of the loop run


class Unreachable(RuntimeError):
    """The peer is gone, or has not read for long."""


class Channel:
    """A socket in the event loop's thread. receive: called with the frames of each message."""

    def __init__(self, socket: zmq.Socket[bytes], receive: Callable[[list[bytes]], None]):
        self._socket, self._receive = socket, receive
        self._loop = asyncio.get_running_loop()
        self._descriptor = socket.fileno()
        self._loop.add_reader(self._descriptor, self._ready)
        self._loop.call_soon(self._ready)

    def send(self, *frames: bytes) -> None:
        """Send a message. Raises Unreachable."""
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise Unreachable(str(error)) from None
        finally:
            # The descriptor signals a change once, and sending may have caused the signal.
            if not self._socket.closed and int(self._socket.EVENTS) & zmq.POLLIN:
                self._loop.call_soon(self._ready)

    def close(self) -> None:
        """Close the socket; messages may still go out for a second."""
        if not self._socket.closed:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._descriptor)
            self._socket.close(linger=1000)

    def _ready(self) -> None:
        for _ in range(_BATCH):
            if self._socket.closed:
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._receive(frames)
            except BaseException:
                self._loop.call_soon(self._ready)  # the descriptor does not signal the messages behind it again
                raise
        self._loop.call_soon(self._ready)


def make_socket(kind: int, options: Sequence[tuple[int, int | bytes]] = ()) -> zmq.Socket[bytes]:
    """Return a socket with bounded queues."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    for option, value in ((zmq.SNDHWM, MAX_QUEUED), (zmq.RCVHWM, MAX_QUEUED), (zmq.LINGER, 0), *options):
        socket.setsockopt(option, value)
    return socket
