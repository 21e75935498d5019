"""The bridge between asyncio and the engine: per-request streams over a loop that runs in a thread of its own.

Knows requests and events; not text, not HTTP. The engine thread sleeps on its inbox while nothing is to be done (no
CPU when idle), takes commands only between steps, and hands each step's events to the event loop in one call. A
consumer that goes away (its stream is closed or cancelled) aborts its request.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Callable

from inflight.core.events import Event, FinishedEvent
from inflight.core.plan import WaitUntil
from inflight.core.request import Request, RequestRefused
from inflight.core.scheduler import Snapshot
from inflight.engine.loop import EngineLoop

Command = Callable[[], None]


class EngineStopped(RuntimeError):
    """The engine was closed, or its thread ended by a fault; the sentence says which."""


class _Stream:
    """Events of one request on their way to the consumer's event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.items: asyncio.Queue[Event | Exception] = asyncio.Queue()


class AsyncBridge:
    def __init__(self, loop: EngineLoop):
        self._loop = loop
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._wake = threading.Event()  # cuts a batching window short when a command comes
        self._streams: dict[str, _Stream] = {}  # touched by the engine thread only
        self._stopped: str | None = None
        self._door = threading.Lock()  # no command slips in between the last drain and the thread's end
        self._thread = threading.Thread(target=self._main, name="inflight-engine", daemon=True)
        self._thread.start()

    async def stream(self, request: Request) -> AsyncIterator[Event]:
        """The request's events, the last of them a FinishedEvent. Raises RequestRefused or EngineStopped."""
        stream = _Stream()
        self._send(lambda: self._add(request, stream))
        ended = False
        try:
            while not ended:
                item = await stream.items.get()
                if isinstance(item, Exception):
                    ended = True
                    raise item
                ended = isinstance(item, FinishedEvent)
                yield item
        finally:
            if not ended:
                self.abort(request.request_id)

    def abort(self, request_id: str) -> None:
        """End a request wherever it is; its stream ends with finish reason "abort". Unknown ids are ignored."""
        with contextlib.suppress(EngineStopped):
            self._send(lambda: self._deliver(self._loop.abort(request_id)))

    async def snapshot(self) -> Snapshot:
        """Counts taken between two steps."""
        future: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()

        def answer() -> None:
            counts = self._loop.snapshot()
            future.get_loop().call_soon_threadsafe(_resolve, future, counts)

        self._send(answer)
        return await future

    def close(self) -> None:
        """Abort what runs, end the thread and close the executor."""
        with contextlib.suppress(EngineStopped):
            self._send(lambda: self._stop("The engine was closed."))
        self._thread.join()

    # -- any thread ---------------------------------------------------------------------------------------------

    def _send(self, command: Command) -> None:
        with self._door:
            if self._stopped is not None:
                raise EngineStopped(self._stopped)
            self._inbox.put(command)
        self._wake.set()

    # -- engine thread ------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while self._stopped is None:
                self._take_commands()
                if self._stopped is None:
                    self._advance()
        except Exception as fault:  # a fault in the engine must reach every consumer, or they would wait for ever
            self._stop(f"The engine stopped by a fault: {type(fault).__name__}: {fault}. Restart it.")
        finally:
            self._drain()
            self._loop.close()

    def _take_commands(self) -> None:
        """Run all commands that are there; wait for one when the engine has nothing else to do."""
        self._wake.clear()
        if self._loop.idle:
            self._inbox.get()()
        self._drain()

    def _drain(self) -> None:
        while True:
            try:
                command = self._inbox.get_nowait()
            except queue.Empty:
                return
            command()

    def _advance(self) -> None:
        outcome = self._loop.advance()
        if isinstance(outcome, WaitUntil):
            self._loop.clock.wait_until(outcome.time, self._wake)
        else:
            self._deliver(outcome)

    def _add(self, request: Request, stream: _Stream) -> None:
        if self._stopped is not None:
            return _post(stream, [EngineStopped(self._stopped)])
        try:
            self._loop.add(request)
        except RequestRefused as refusal:
            _post(stream, [refusal])
        else:
            self._streams[request.request_id] = stream

    def _deliver(self, events: list[Event]) -> None:
        parcels: dict[str, list[Event | Exception]] = {}
        for event in events:
            parcels.setdefault(event.request_id, []).append(event)
        for request_id, parcel in parcels.items():
            _post(self._streams[request_id], parcel)
            if isinstance(parcel[-1], FinishedEvent):
                del self._streams[request_id]

    def _stop(self, sentence: str) -> None:
        with self._door:
            self._stopped = sentence
        for stream in self._streams.values():
            _post(stream, [EngineStopped(sentence)])
        self._streams.clear()


def _resolve(future: asyncio.Future[Snapshot], counts: Snapshot) -> None:
    if not future.done():  # its consumer may have gone away
        future.set_result(counts)


def _post(stream: _Stream, items: list[Event | Exception]) -> None:
    def put() -> None:
        for item in items:
            stream.items.put_nowait(item)

    with contextlib.suppress(RuntimeError):  # the consumer's event loop is closed: nobody is left to tell
        stream.loop.call_soon_threadsafe(put)
