"""Replay: messages that were sent a while ago, for subscribers who have missed some.

One asks with the number of the first that it lacks, and gets all that are kept from there on, each with its number,
then an end mark. Where less is kept than it lacks, the first number shows it. Many messages go out in pieces, so that
those which are new do not wait behind them, and somebody who reads slowly keeps nobody waiting. Knows numbers and
bytes; not what is in them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import zmq

END = (-1).to_bytes(8, "big", signed=True)  # with nothing behind it
_AT_ONCE = 64  # messages to one, before others have their turn
_MOST_ASKING = 64  # at once; more are not answered, and ask again
PATIENCE = 10.0  # seconds in which one has taken nothing, after which it is given up


@dataclass(slots=True)
class _Asking:
    """following: the next number that it is owed. taken: when it last took a message."""

    following: int
    taken: float


class Replay:
    def __init__(self, socket: zmq.Socket[bytes], steps: int):
        self._socket = socket
        self._steps = steps
        self._kept: dict[int, bytes] = {}
        self._next = 0  # number
        self._asking: dict[bytes, _Asking] = {}  # by ZMQ's name of whoever asks

    def keep(self, payload: bytes) -> None:
        """What was sent with the next number."""
        self._kept[self._next] = payload
        self._kept.pop(self._next - self._steps, None)
        self._next += 1

    @property
    def owes(self) -> bool:
        return bool(self._asking)

    def serve(self) -> bool:
        """Read who asks, send each a piece; whether anything could be sent."""
        self._read()
        return any([self._send(who, asking) for who, asking in tuple(self._asking.items())])

    def _read(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) != 3 or frames[1] or len(frames[2]) != 8:
                continue  # nothing that could be answered
            if len(self._asking) < _MOST_ASKING or frames[0] in self._asking:
                self._asking[frames[0]] = _Asking(int.from_bytes(frames[2], "big"), time.monotonic())

    def _send(self, who: bytes, asking: _Asking) -> bool:
        """Whether it has taken anything."""
        first = asking.following
        for _ in range(_AT_ONCE):
            asking.following = max(asking.following, self._next - len(self._kept))
            is_end = asking.following >= self._next
            number = END if is_end else asking.following.to_bytes(8, "big")
            try:
                self._socket.send_multipart((who, b"", number, self._kept.get(asking.following, b"")), zmq.NOBLOCK)
            except zmq.Again:
                break
            except zmq.ZMQError:  # it is gone
                is_end = True
            if is_end:
                del self._asking[who]
                return True
            asking.following += 1
        if asking.following > first:
            asking.taken = time.monotonic()
        elif time.monotonic() - asking.taken > PATIENCE:
            del self._asking[who]
        return asking.following > first
