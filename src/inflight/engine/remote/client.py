"""A client of an engine in another process, in one event loop.

The engine itself reports that it has stopped; that its process has died is reported by a call of `stop`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from functools import partial

import zmq

from inflight.core.types.events import Event
from inflight.core.types.request import Request, RequestRefused
from inflight.engine.event_stream import CLOSED, EngineStopped, EventStream, RequestsLost
from inflight.engine.remote.channel import Channel, Unreachable, make_socket
from inflight.engine.remote.messages import (
    Accepted,
    Cancel,
    Failed,
    Happened,
    MessageError,
    Open,
    Refused,
    ToEngine,
    decode_from_engine,
    encode,
)

# Given the reason, and whether the engine runs but cannot be reached or understood: only its client knows that.
OnStop = Callable[[str, bool], None]


class RemoteClient:
    """An `EngineClient`."""

    def __init__(self, address: str, name: str, on_stop: OnStop = lambda sentence, is_broken: None):
        """Connect to an engine.

        Args:
            address: Of the engine's server.
            name: One that no other client of that engine has had.
            on_stop: Called when the engine has stopped.
        """
        self._on_stop = on_stop
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._streams: dict[int, EventStream] = {}
        self._accepted: dict[str, int] = {}  # request → its stream's number
        self._stopped: str | None = None
        socket = make_socket(zmq.DEALER, [(zmq.IDENTITY, name.encode())])
        socket.connect(address)
        self._channel = Channel(socket, self._receive)

    async def open(self, *requests: Request) -> EventStream:
        number = next(self._numbers)
        stream = EventStream(requests, partial(self._cancel, number))
        self._send(Open(number, requests))
        self._streams[number] = stream
        return await stream.opened()

    @property
    def stopped(self) -> str | None:
        return self._stopped

    def stop(self, sentence: str, *, is_broken: bool = False) -> None:
        """End all streams, because the engine has stopped for this reason. is_broken: as `OnStop` has it."""
        if self._stopped is not None:
            return
        self._stopped = sentence
        for stream in self._streams.values():
            _end(stream, EngineStopped(sentence))
        self._streams.clear()
        self._accepted.clear()
        self._on_stop(sentence, is_broken)

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        with contextlib.suppress(EngineStopped):
            for number in tuple(self._streams):
                self._send(Cancel(number))
        self.stop(CLOSED)
        self._channel.close()

    def _send(self, message: ToEngine) -> None:
        """Send a message. Raises EngineStopped."""
        if self._stopped is None:
            try:
                return self._channel.send(encode(message))
            except Unreachable as error:
                self.stop(f"The engine cannot be reached ({error}).", is_broken=True)
        raise EngineStopped(self._stopped)

    def _cancel(self, number: int, stream: EventStream) -> None:
        if self._streams.get(number) is stream:
            self._forget(number)
            with contextlib.suppress(EngineStopped):
                self._send(Cancel(number))

    def _forget(self, number: int) -> None:
        for request in self._streams.pop(number).requests:
            if self._accepted.get(request.request_id) == number:
                del self._accepted[request.request_id]

    def _receive(self, frames: list[bytes]) -> None:
        try:
            message = decode_from_engine(frames[-1])
            if isinstance(message, Happened):
                return self._happened(message)
        except MessageError as error:
            return self.stop(str(error), is_broken=True)
        if isinstance(message, Failed):
            if (stream := self._streams.get(message.stream)) is not None:
                self._forget(message.stream)
                _end(stream, RequestsLost(message.sentence))
        elif isinstance(message, Accepted | Refused):
            self._answered(message)
        else:
            self.stop(message.sentence)

    def _answered(self, message: Accepted | Refused) -> None:
        stream = self._streams.get(message.stream)
        if stream is None:  # its consumer has cancelled it
            return
        if isinstance(message, Accepted):
            self._accepted.update(dict.fromkeys((request.request_id for request in stream.requests), message.stream))
            return stream.accept(None)
        del self._streams[message.stream]
        stream.accept(RequestRefused(message.sentence, message.retry_after, field=message.field, code=message.code))

    def _happened(self, message: Happened) -> None:
        """Deliver events to their streams. Raises MessageError."""
        parcels: dict[int, list[Event]] = {}
        for event in message.events():
            number = self._accepted.get(event.request_id)
            if number is not None:  # its consumer has not cancelled it
                parcels.setdefault(number, []).append(event)
        for number, events in parcels.items():
            stream = self._streams[number]
            stream.put(events)
            if not stream.alive:
                self._forget(number)


def _end(stream: EventStream, error: EngineStopped) -> None:
    """End a stream with an error, accepted or not."""
    if stream.accepted.done():
        stream.fail(error)
    else:
        stream.accept(error)
