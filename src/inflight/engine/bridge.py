"""The bridge between asyncio and the engine: the engine loop runs in a thread of its own, its events go to streams.

Add, abort and count are commands (`commands`), so that a new request need not wait for a step's end to be refused. The
engine sleeps while there is no work (no CPU when idle), and passes each step's events to an event loop in one call. A
consumer whose stream is closed or cancelled aborts its requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from inflight.core.scheduling.stats import SchedulerStats
from inflight.core.types.events import Event, FinishedEvent
from inflight.core.types.plan import WaitUntil
from inflight.core.types.request import Request, RequestRefused
from inflight.core.types.sampling import Grammar
from inflight.engine.commands import CommandQueue
from inflight.engine.event_stream import CLOSED, EngineStopped, EventStream, set_outcome
from inflight.engine.loop import EngineLoop
from inflight.engine.preparing import Prepared, Preparing
from inflight.engine.protocols import GrammarGate

MANY = 16  # samples; more are added in a worker thread

log = logging.getLogger(__name__)
T = TypeVar("T")


class Consumer(Protocol):
    """Owner of some requests. Its methods are called in its event loop."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Its event loop."""

    @property
    def requests(self) -> tuple[Request, ...]:
        """Its requests."""

    def accept(self, refusal: Exception | None) -> None:
        """Take the outcome: all requests were accepted, or none, with a RequestRefused or EngineStopped."""

    def put(self, events: list[Event]) -> None:
        """Take events."""

    def fail(self, error: Exception) -> None:
        """End with an error."""


class EventSource(Protocol):
    """An engine that takes requests of consumers, and calls these with events. Called in the consumer's event loop."""

    def submit(self, consumer: Consumer) -> None:
        """Submit a consumer's requests; the outcome goes to its `accept`."""

    def cancel(self, consumer: Consumer) -> None:
        """Abort a consumer's requests that have not ended."""


class AsyncBridge:
    """An `EngineClient` of an engine in this process."""

    def __init__(self, loop: EngineLoop):
        self._loop = loop
        self._commands = CommandQueue(self._stop_by_error)  # its lock guards the engine loop and the streams
        self._streams: dict[str, Consumer] = {}
        self._preparing: Preparing[Consumer] = Preparing()
        self._stopped: str | None = None
        if loop.grammars is not None:
            loop.grammars.warm_up()
        self._thread = threading.Thread(target=self._main, name="inflight-engine", daemon=True)
        self._thread.start()

    async def open(self, *requests: Request) -> EventStream:
        """Submit requests, all of them or none. Raises RequestRefused or EngineStopped."""
        stream = EventStream(requests, self.cancel)
        self.submit(stream)
        return await stream.opened()

    def submit(self, consumer: Consumer) -> None:
        """Submit a consumer's requests, in its event loop; the outcome goes to its `accept`."""
        grammars = [one.grammar for one in consumer.requests if one.grammar is not None]
        if grammars and self._loop.grammars is not None:
            return self._prepare(consumer, grammars, self._loop.grammars)
        self._submit(consumer)

    def _prepare(self, consumer: Consumer, grammars: list[Grammar], gate: GrammarGate) -> None:
        """Submit the consumer's requests once their grammars are compiled."""
        self._preparing.begin(consumer, self._loop.clock.now())
        ready = partial(_call, consumer.loop, partial(self._prepared, consumer))
        try:
            preparation = gate.prepare(grammars, ready, consumer.requests[0].tenant)
        except RequestRefused as refusal:
            self._preparing.cancel(consumer)
            return consumer.accept(refusal)
        is_ready = preparation.is_ready
        self._preparing.set_preparation(consumer, preparation)
        if is_ready:
            self._prepared(consumer, waited=False)

    def _prepared(self, consumer: Consumer, waited: bool = True) -> None:
        """Submit requests whose grammars are compiled, in the consumer's event loop; it may have cancelled them."""
        prepared = self._preparing.end(consumer)
        if prepared is not None:
            self._submit(consumer, self._loop.clock.now() - prepared.since if waited else 0.0, prepared)

    def _submit(self, consumer: Consumer, compiling: float = 0.0, prepared: Prepared | None = None) -> None:
        add = partial(self._add, consumer, compiling, prepared)
        if not _is_large(consumer):
            return self._commands.send(add)
        self._commands.put_large(add)
        consumer.loop.run_in_executor(None, self._commands.run_large)  # the event loop serves others meanwhile

    def cancel(self, consumer: Consumer) -> None:
        """Abort a consumer's requests. Another consumer's request may have the id of one that was refused for it."""
        if self._preparing.cancel(consumer):
            return
        abort = partial(self._abort_all, consumer)
        if not _is_large(consumer):
            self._commands.send(abort)
        elif self._stopped is None:
            self._commands.put_large(abort)
            self._commands.wake.set()

    def abort(self, request_id: str) -> None:
        """End a request wherever it is; its stream ends with finish reason "abort". Unknown ids are ignored."""
        ended = self._preparing.abort(request_id, self._loop.clock.now())
        if ended is not None:
            consumer, events = ended
            return _call(consumer.loop, partial(_end_unsubmitted, consumer, events))
        self._commands.send(lambda: self._abort(request_id))

    async def stats(self) -> SchedulerStats:
        """Return counts of a moment when no plan is made. Raises EngineStopped."""
        return await self.ask(self._stats)

    async def ask(self, question: Callable[[], T]) -> T:
        """Call a quick function of the engine loop while no plan is made, and return its result. Raises
        EngineStopped."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def answer() -> None:
            try:
                if self._stopped is not None:
                    raise EngineStopped(self._stopped)
                self._loop.take_transferred_idle()
                outcome: T | Exception = question()
            except Exception as error:  # an error in counting is no reason to stop
                outcome = error
            _call(loop, partial(set_outcome, future, outcome))

        self._commands.send(answer)
        return await future

    @property
    def stopped(self) -> str | None:
        """Why the engine has stopped; None while it runs."""
        return self._stopped

    def close(self) -> None:
        """Abort all requests, end the thread and close the executor."""
        self._commands.send(self._close)
        self._thread.join()

    # -- with the lock ------------------------------------------------------------------------------------------

    def _stats(self) -> SchedulerStats:
        """Return the counts with requests whose grammars are being compiled."""
        stats, counts = self._loop.stats(), self._preparing.sequences()
        if not counts:
            return stats
        return replace(stats, lanes=tuple(replace(lane, compiling=counts.get(lane.name, 0)) for lane in stats.lanes))

    def _add(self, consumer: Consumer, compiling: float, prepared: Prepared | None) -> None:
        """Add requests. compiling: seconds that their grammars took. prepared: cancelled once the engine has them."""
        try:
            self._add_all(consumer, compiling, () if prepared is None else prepared.aborted)
        finally:
            if prepared is not None:
                prepared.cancel()

    def _add_all(self, consumer: Consumer, compiling: float, aborted: Iterable[str]) -> None:
        """Add requests, all or none. aborted: ids of those that were aborted meanwhile."""
        if self._stopped is not None:
            return _call(consumer.loop, partial(consumer.accept, EngineStopped(self._stopped)))
        added: list[Request] = []
        try:
            for request in consumer.requests:
                self._loop.add(request, compiling)
                added.append(request)
        except RequestRefused as refusal:
            for request in added:
                self._loop.abort(request.request_id)
            return _call(consumer.loop, partial(consumer.accept, refusal))
        except BaseException as error:
            _call(consumer.loop, partial(consumer.accept, EngineStopped(_sentence(error))))
            raise
        self._streams.update(dict.fromkeys((request.request_id for request in added), consumer))
        _call(consumer.loop, partial(consumer.accept, None))
        for request_id in aborted:
            self._abort(request_id)

    def _abort(self, request_id: str) -> None:
        if self._stopped is None:
            self._deliver(self._loop.abort(request_id))

    def _abort_all(self, consumer: Consumer) -> None:
        """Abort a consumer's requests, whose events are not read any more."""
        mine = [one.request_id for one in consumer.requests if self._streams.get(one.request_id) is consumer]
        self._deliver([event for request_id in mine for event in self._loop.abort(request_id)], left=consumer)

    def _deliver(self, events: list[Event], left: Consumer | None = None) -> None:
        parcels: dict[Consumer, list[Event]] = {}
        for event in events:
            parcels.setdefault(self._streams[event.request_id], []).append(event)
            if isinstance(event, FinishedEvent):
                del self._streams[event.request_id]
        if left is not None:
            parcels.pop(left, None)
        _post(parcels)

    def _close(self) -> None:
        """Stop the engine, and abort its requests; their consumers get the reason."""
        requests = list(self._streams)
        self._stop(CLOSED)
        for request_id in requests:
            self._loop.abort(request_id)

    def _stop_by_error(self, error: BaseException) -> None:
        """Stop the engine. Every consumer must get the error, or it would wait for ever."""
        log.critical("the engine stops by an error", exc_info=error)
        self._stop(_sentence(error))

    def _stop(self, sentence: str) -> None:
        if self._stopped is None:
            self._stopped = sentence
            self._commands.end()
        for consumer in set(self._streams.values()):
            _call(consumer.loop, partial(consumer.fail, EngineStopped(sentence)))
        self._streams.clear()
        for consumer in self._preparing.clear():
            _call(consumer.loop, partial(consumer.accept, EngineStopped(sentence)))

    # -- engine thread ------------------------------------------------------------------------------------------

    def _main(self) -> None:
        self._commands.lock.acquire()
        try:
            while self._stopped is None:
                self._commands.run_locked()
                if self._stopped is None:
                    self._advance()
        except BaseException as error:  # also what native libraries raise when they panic
            self._stop_by_error(error)
        finally:
            self._commands.run_locked()
            try:
                self._loop.close()
            except Exception:  # it must not hide why the engine stopped, nor keep the lock
                log.exception("the engine could not be closed properly")
            finally:
                self._commands.lock.release()
                self._commands.run_large()

    def _advance(self) -> None:
        """Do one round, or sleep until there is work."""
        commands = self._commands
        if self._loop.idle:
            with commands.unlocked:
                commands.wake.wait()
            return
        outcome = self._loop.advance(commands.unlocked)
        if isinstance(outcome, WaitUntil):
            with commands.unlocked:
                self._loop.clock.wait_until(outcome.time, commands.wake)
        else:
            self._deliver(outcome)


def _is_large(consumer: Consumer) -> bool:
    return sum(request.params.n for request in consumer.requests) > MANY


def _sentence(error: BaseException) -> str:
    return f"The engine stopped by an error: {type(error).__name__}: {error}."


def _post(parcels: dict[Consumer, list[Event]]) -> None:
    """Pass events on with one call per event loop: to wake it up costs more than many events."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Consumer, list[Event]]]] = {}
    for consumer, events in parcels.items():
        by_loop.setdefault(consumer.loop, []).append((consumer, events))
    for loop, items in by_loop.items():
        _call(loop, partial(_put, items))


def _put(items: list[tuple[Consumer, list[Event]]]) -> None:
    for consumer, events in items:
        consumer.put(events)


def _end_unsubmitted(consumer: Consumer, events: Sequence[Event]) -> None:
    """Deliver the ends of requests that were aborted before the engine had them."""
    consumer.accept(None)
    consumer.put(list(events))


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the consumer's event loop is closed
        loop.call_soon_threadsafe(callback)
