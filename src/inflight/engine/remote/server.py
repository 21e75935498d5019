"""The engine's side of its remote clients: their messages go to the bridge, what happens goes back, once a step.

Knows clients by name, streams by their client's number. Lives in one event loop of the engine's process. A client that
sends nonsense, or does not read, is given up: what it asked for is aborted, and whoever watches over it is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import zmq

from inflight.core.types.events import Event, FinishedEvent
from inflight.core.types.request import Request, RequestRefused
from inflight.engine.bridge import AsyncBridge
from inflight.engine.remote.channel import Channel, Unreachable, make_socket
from inflight.engine.remote.messages import (
    Accepted,
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
    def __init__(self, bridge: AsyncBridge, address: str, given_up: Callable[[str], None] = lambda name: None):
        """given_up: told the name of a client that there is no use in talking to."""
        self._bridge, self._given_up = bridge, given_up
        self._clients: dict[bytes, _Client] = {}
        # A message that cannot be delivered is an error; ZMQ would drop it without a word.
        socket = make_socket(zmq.ROUTER, [(zmq.ROUTER_MANDATORY, 1)])
        socket.bind(address)
        self._channel = Channel(socket, self._receive)

    def lost(self, name: str) -> int:
        """That client is gone: end what it asked for. How many streams that were."""
        client = self._clients.pop(name.encode(), None)
        return 0 if client is None else client.leave(self._bridge)

    def stop(self, sentence: str) -> None:
        """Tell all clients that the engine works no more."""
        for client in tuple(self._clients.values()):
            client.tell(Stopped(sentence))

    def close(self) -> None:
        for name in tuple(self._clients):
            self.lost(name.decode())
        self._channel.close()

    def _receive(self, frames: list[bytes]) -> None:
        name, data = frames[0], frames[-1]
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = _Client(name, self._channel, self._give_up)
        try:
            self._do(client, decode_to_engine(data))
        except MessageError as error:
            self._give_up(name, str(error))

    def _do(self, client: _Client, message: ToEngine) -> None:
        if isinstance(message, Open):
            stream = client.streams[message.stream] = _Stream(client, message.stream, message.requests)
            self._bridge.submit(stream)
        else:
            left = client.streams.pop(message.stream, None)
            if left is not None:
                self._bridge.cancel(left)

    def _give_up(self, name: bytes, why: str) -> None:
        if name in self._clients:
            log.error("An API process is given up: %s", why)
            self.lost(name.decode())
            self._given_up(name.decode())


class _Client:
    """One client, and what is to be sent to it when the loop comes round."""

    def __init__(self, name: bytes, channel: Channel, give_up: Callable[[bytes, str], None]):
        self.streams: dict[int, _Stream] = {}
        self.loop = asyncio.get_running_loop()
        self._name, self._channel, self._give_up = name, channel, give_up
        self._events: list[Event] = []
        self._is_gone = False

    def happened(self, events: list[Event]) -> None:
        """All streams' events of a step come within one round of the loop, and go in one message."""
        if not self._events:
            self.loop.call_soon(self._flush)
        self._events += events

    def tell(self, message: FromEngine) -> None:
        """After `Stopped` nothing."""
        self._flush()
        self._send(message)
        self._is_gone = self._is_gone or isinstance(message, Stopped)

    def leave(self, bridge: AsyncBridge) -> int:
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
                self._give_up(self._name, f"it cannot be reached ({error}).")


class _Stream:
    """A consumer of the bridge: one client's requests that came together."""

    def __init__(self, client: _Client, number: int, requests: tuple[Request, ...]):
        self.loop = client.loop
        self.requests = requests
        self._client, self._number = client, number
        self._alive = len(requests)

    def accept(self, refusal: Exception | None) -> None:
        if refusal is None:
            return self._client.tell(Accepted(self._number))
        self._client.streams.pop(self._number, None)
        if isinstance(refusal, RequestRefused):
            told = Refused(self._number, str(refusal), refusal.retry_after, refusal.field, refusal.code)
            return self._client.tell(told)
        self.fail(refusal)

    def put(self, events: list[Event]) -> None:
        self._client.happened(events)
        self._alive -= sum(isinstance(event, FinishedEvent) for event in events)
        if not self._alive:
            self._client.streams.pop(self._number, None)

    def fail(self, error: Exception) -> None:
        self._client.tell(Stopped(str(error)))
