"""The server of remote clients in the engine's process: their messages go to the bridge, events go back once per step.

It is in one event loop. A client that sends invalid messages, or does not read, is dropped: its requests are aborted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import zmq

from inflight.core.types.events import Event, FinishedEvent
from inflight.core.types.request import Request, RequestRefused
from inflight.engine.bridge import EventSource
from inflight.engine.event_stream import RequestsLost
from inflight.engine.remote.channel import Channel, Unreachable, make_socket
from inflight.engine.remote.messages import (
    Accepted,
    Failed,
    FromEngine,
    Happened,
    MessageError,
    Open,
    Refused,
    Stopped,
    ToEngine,
    decode_to_engine,
    encode,
)

log = logging.getLogger(__name__)


class EngineServer:
    """Serves one engine at an address."""

    def __init__(self, bridge: EventSource, address: str, dropped: Callable[[str], None] = lambda name: None):
        """Listen at an address. dropped: called with the name of each client that is dropped."""
        self._bridge, self._dropped = bridge, dropped
        self._clients: dict[bytes, _Client] = {}
        # An undeliverable message is an error; by default ZMQ drops it silently.
        socket = make_socket(zmq.ROUTER, [(zmq.ROUTER_MANDATORY, 1)])
        socket.bind(address)
        self._channel = Channel(socket, self._receive)

    def lost(self, name: str) -> int:
        """Abort the requests of a client that is gone, and return the number of its streams."""
        client = self._clients.pop(name.encode(), None)
        return 0 if client is None else client.cancel(self._bridge)

    def stop(self, sentence: str) -> None:
        """Send all clients that the engine has stopped."""
        for client in tuple(self._clients.values()):
            client.send(Stopped(sentence))

    def close(self) -> None:
        """Abort all requests, and close the socket."""
        for name in tuple(self._clients):
            self.lost(name.decode())
        self._channel.close()

    def _receive(self, frames: list[bytes]) -> None:
        name, data = frames[0], frames[-1]
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = _Client(name, self._channel, self._drop)
        try:
            self._handle(client, decode_to_engine(data))
        except MessageError as error:
            self._drop(name, str(error))

    def _handle(self, client: _Client, message: ToEngine) -> None:
        if isinstance(message, Open):
            stream = client.streams[message.stream] = _Stream(client, message.stream, message.requests)
            self._bridge.submit(stream)
        else:
            cancelled = client.streams.pop(message.stream, None)
            if cancelled is not None:
                self._bridge.cancel(cancelled)

    def _drop(self, name: bytes, why: str) -> None:
        if name in self._clients:
            log.error("An API process is dropped: %s", why)
            self.lost(name.decode())
            self._dropped(name.decode())


class _Client:
    """One client, and the events that are sent to it in the loop's next round."""

    def __init__(self, name: bytes, channel: Channel, drop: Callable[[bytes, str], None]):
        self.streams: dict[int, _Stream] = {}
        self.loop = asyncio.get_running_loop()
        self._name, self._channel, self._drop = name, channel, drop
        self._events: list[Event] = []
        self._is_gone = False

    def put(self, events: list[Event]) -> None:
        """Queue events: those of a step come within one round of the loop, and are one message."""
        if not self._events:
            self.loop.call_soon(self._flush)
        self._events += events

    def send(self, message: FromEngine) -> None:
        """Send a message behind the queued events; none is sent after `Stopped`."""
        self._flush()
        self._send(message)
        self._is_gone = self._is_gone or isinstance(message, Stopped)

    def cancel(self, bridge: EventSource) -> int:
        self._is_gone = True
        left = list(self.streams.values())
        self.streams.clear()
        for stream in left:
            bridge.cancel(stream)
        return len(left)

    def _flush(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self._send(Happened.of(events))

    def _send(self, message: FromEngine) -> None:
        if not self._is_gone:
            try:
                self._channel.send(self._name, encode(message))
            except Unreachable as error:
                self._drop(self._name, f"it cannot be reached ({error}).")


class _Stream:
    """A consumer of the bridge: requests that a client submitted together."""

    def __init__(self, client: _Client, number: int, requests: tuple[Request, ...]):
        self.loop = client.loop
        self.requests = requests
        self._client, self._number = client, number
        self._alive = len(requests)

    def accept(self, refusal: Exception | None) -> None:
        if refusal is None:
            return self._client.send(Accepted(self._number))
        self._client.streams.pop(self._number, None)
        if isinstance(refusal, RequestRefused):
            refused = Refused(self._number, str(refusal), refusal.retry_after, refusal.field, refusal.code)
            return self._client.send(refused)
        self.fail(refusal)

    def put(self, events: list[Event]) -> None:
        self._client.put(events)
        self._alive -= sum(isinstance(event, FinishedEvent) for event in events)
        if not self._alive:
            self._client.streams.pop(self._number, None)

    def fail(self, error: Exception) -> None:
        if isinstance(error, RequestsLost):
            self._client.streams.pop(self._number, None)
            return self._client.send(Failed(self._number, str(error)))
        self._client.send(Stopped(str(error)))
