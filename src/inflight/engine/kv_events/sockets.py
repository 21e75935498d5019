"""The sockets of KV events: opened before a model is loaded, so that an address in use is told at once.

Knows ZMQ's addresses and which end listens; not what is said.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

import zmq

from inflight.engine.kv_events.options import KVEventOptions
from inflight.engine.remote.channel import make_socket

_LONGEST = 4096  # bytes of what subscribers send: topics, and numbers where to begin
_LISTENS = ("*", "::", "ipc://", "inproc://")  # in an address, as vLLM has it; others are called


class KVEventAddressError(ValueError):
    """An address cannot be used; the sentence says why."""


@dataclass(frozen=True, slots=True)
class KVEventSockets:
    """published, replayed: the addresses in use, as they came to be where a free port was asked for."""

    publish: zmq.Socket[bytes]
    replay: zmq.Socket[bytes] | None
    published: str
    replayed: str | None

    def close(self, seconds: float = 0.0) -> None:
        """What was sent may still go out for so long."""
        for socket in (self.publish, self.replay):
            if socket is not None:
                socket.close(linger=int(1000 * seconds))


def open_sockets(options: KVEventOptions) -> KVEventSockets:
    """Raises KVEventAddressError."""
    publish = make_socket(zmq.PUB, ((zmq.SNDHWM, options.hwm), (zmq.MAXMSGSIZE, _LONGEST)))
    listens = any(mark in options.endpoint for mark in _LISTENS)
    try:
        published = _open(publish, "endpoint", options.endpoint, listens)
        if options.replay_endpoint is None:
            return KVEventSockets(publish, None, published, None)
        # One that asks and does not read is told so, instead of losing messages among which is the last.
        replay = make_socket(zmq.ROUTER, ((zmq.ROUTER_MANDATORY, 1), (zmq.MAXMSGSIZE, _LONGEST)))
        try:
            replayed = _open(replay, "replay_endpoint", options.replay_endpoint, listens=True)
        except KVEventAddressError:
            replay.close()
            raise
    except KVEventAddressError:
        publish.close()
        raise
    return KVEventSockets(publish, replay, published, replayed)


def _open(socket: zmq.Socket[bytes], name: str, address: str, listens: bool) -> str:
    try:
        if not listens:
            socket.connect(address)
            return address
        socket.bind(address)
    except zmq.ZMQError as error:
        where = f"--kv-events-config: {name} is {address}"
        if error.errno == errno.EADDRINUSE:
            raise KVEventAddressError(
                f"{where}, and something listens there already; give another port, or end what has it."
            ) from None
        raise KVEventAddressError(
            f"{where}, which cannot be used ({error.strerror}); write it like tcp://*:5557 or ipc:///run/kv-events."
        ) from None
    bound = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(bound, bytes), "it is an address"
    return bound.rstrip(b"\0").decode()
