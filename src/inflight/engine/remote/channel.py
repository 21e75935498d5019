"""A ZMQ socket on an event loop: messages out at once or not at all, messages in as they come.

Knows ZMQ's rules, not what is said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import zmq

HELD = 2_000  # messages that wait for a peer; at one a step, many seconds in which it has read nothing
_AT_ONCE = 32  # messages, before others have their turn on the loop


class Unreachable(RuntimeError):
    """The peer is gone, or has read nothing for long."""


class Channel:
    """In the event loop's thread. receive: given the frames of each message."""

    def __init__(self, socket: zmq.Socket[bytes], receive: Callable[[list[bytes]], None]):
        self._socket, self._receive = socket, receive
        self._loop = asyncio.get_running_loop()
        self._descriptor = socket.fileno()
        self._loop.add_reader(self._descriptor, self._ready)
        self._loop.call_soon(self._ready)

    def send(self, *frames: bytes) -> None:
        """Raises Unreachable."""
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise Unreachable(str(error)) from None
        finally:
            # The descriptor tells of news only once, and sending may have been what it told of.
            if not self._socket.closed and int(self._socket.EVENTS) & zmq.POLLIN:
                self._loop.call_soon(self._ready)

    def close(self) -> None:
        """What was sent may still go out, for a second."""
        if not self._socket.closed:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._descriptor)
            self._socket.close(linger=1000)

    def _ready(self) -> None:
        for _ in range(_AT_ONCE):
            if self._socket.closed:
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._receive(frames)
            except BaseException:
                self._loop.call_soon(self._ready)  # what has come behind it is told of no more
                raise
        self._loop.call_soon(self._ready)


def make_socket(kind: int, options: Sequence[tuple[int, int | bytes]] = ()) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    for option, value in ((zmq.SNDHWM, HELD), (zmq.RCVHWM, HELD), (zmq.LINGER, 0), *options):
        socket.setsockopt(option, value)
    return socket
