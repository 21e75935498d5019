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
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

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
                self._command(lambda: self._leave(request.request_id, stream))

    def abort(self, request_id: str) -> None:
        """End a request wherever it is; its stream ends with finish reason "abort". Unknown ids are ignored."""
        self._command(lambda: self._abort(request_id))

    async def snapshot(self) -> Snapshot:
        """Counts taken between two steps."""
        future: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()

        def answer() -> None:
            _call(future.get_loop(), partial(_resolve, future, self._loop.snapshot()))

        self._send(answer)
        return await future

    def close(self) -> None:
        """Abort what runs, end the thread and close the executor."""
        self._command(self._close)
        self._thread.join()

    # -- any thread ---------------------------------------------------------------------------------------------

    def _send(self, command: Command) -> None:
        with self._door:
            if self._stopped is not None:
                raise EngineStopped(self._stopped)
            self._inbox.put(command)
        self._wake.set()

    def _command(self, command: Command) -> None:
        """What there is nothing to do for when the engine has stopped."""
        with contextlib.suppress(EngineStopped):
            self._send(command)

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
            with contextlib.suppress(OSError):  # a record file whose disk is full must not hide the fault
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
            return _post([(stream, EngineStopped(self._stopped))])
        try:
            self._loop.add(request)
        except RequestRefused as refusal:
            _post([(stream, refusal)])
        else:
            self._streams[request.request_id] = stream

    def _abort(self, request_id: str) -> None:
        if self._stopped is None:
            self._deliver(self._loop.abort(request_id))

    def _leave(self, request_id: str, stream: _Stream) -> None:
        """The consumer went away. Another's request may bear the id of one that was refused for it."""
        if self._streams.get(request_id) is stream:
            self._abort(request_id)

    def _deliver(self, events: list[Event]) -> None:
        _post([(self._streams[event.request_id], event) for event in events])
        for event in events:
            if isinstance(event, FinishedEvent):
                del self._streams[event.request_id]

    def _close(self) -> None:
        """The requests end in the engine's accounts too; their consumers are told why."""
        streams = list(self._streams)
        self._stop("The engine was closed.")
        for request_id in streams:
            self._loop.abort(request_id)

    def _stop(self, sentence: str) -> None:
        with self._door:
            self._stopped = sentence
        _post([(stream, EngineStopped(sentence)) for stream in self._streams.values()])
        self._streams.clear()


def _resolve(future: asyncio.Future[Snapshot], counts: Snapshot) -> None:
    if not future.done():  # its consumer may have gone away
        future.set_result(counts)


def _post(items: Sequence[tuple[_Stream, Event | Exception]]) -> None:
    """One call per event loop: each wakes it up, which costs more than many items do."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, Event | Exception]]] = {}
    for stream, item in items:
        by_loop.setdefault(stream.loop, []).append((stream, item))
    for loop, parcel in by_loop.items():
        _call(loop, partial(_put, parcel))


def _put(parcel: list[tuple[_Stream, Event | Exception]]) -> None:
    for stream, item in parcel:
        stream.items.put_nowait(item)


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the consumer's event loop is closed: nobody is left to tell
        loop.call_soon_threadsafe(callback)
