"""The sockets of KV events, opened before a model is loaded, so that an address in use is reported at once."""

from __future__ import annotations

import errno
from dataclasses import dataclass

import zmq

from inflight.engine.kv_events import KVEventOptions
from inflight.engine.remote.channel import make_socket

_MAX_BYTES = 4096  # of what subscribers send: topics, and numbers where to begin
_LISTENS = ("*", "::", "ipc://", "inproc://")  # in an address to listen at, as in vLLM; others are connected to


class KVEventAddressError(ValueError):
    """An address cannot be used; the sentence says why."""


@dataclass(frozen=True, slots=True)
class KVEventSockets:
    """Open sockets. published, replayed: their addresses, with the port where any free one was asked for."""

    publish: zmq.Socket[bytes]
    replay: zmq.Socket[bytes] | None
    published: str
    replayed: str | None

    def close(self, seconds: float = 0.0) -> None:
        """Close both; messages may still go out for so many seconds."""
        for socket in (self.publish, self.replay):
            if socket is not None:
                socket.close(linger=int(1000 * seconds))


def open_sockets(options: KVEventOptions) -> KVEventSockets:
    """Open the sockets of some options. Raises KVEventAddressError."""
    publish = make_socket(zmq.PUB, ((zmq.SNDHWM, options.hwm), (zmq.MAXMSGSIZE, _MAX_BYTES)))
    listens = any(mark in options.endpoint for mark in _LISTENS)
    try:
        published = _open(publish, "endpoint", options.endpoint, listens)
        if options.replay_endpoint is None:
            return KVEventSockets(publish, None, published, None)
        # A subscriber that does not read is an error, instead of losing messages, the last among them.
        replay = make_socket(zmq.ROUTER, ((zmq.ROUTER_MANDATORY, 1), (zmq.MAXMSGSIZE, _MAX_BYTES)))
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
