"""The bridge between asyncio and the engine: streams of events over a loop that runs in a thread of its own.

Knows requests and events; not text, not HTTP. Whoever has a command (add, abort, count) runs it at once while the
engine computes a step or sleeps, for then the scheduler stands still; otherwise the engine runs it before it computes.
So a newcomer need not wait for a step's end to hear that it is refused. Commands for many samples take longer than an
event loop can wait, and are run by the engine, or by a thread that brings them. The engine sleeps while nothing is to
be done (no CPU when idle), and hands each step's events to the event loop in one call. A consumer that goes away (its
stream is closed or cancelled) aborts its requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Protocol, TypeVar

from inflight.core.scheduling.snapshot import Snapshot
from inflight.core.types.events import Event, FinishedEvent
from inflight.core.types.plan import WaitUntil
from inflight.core.types.request import Request, RequestRefused
from inflight.core.types.sampling import Grammar
from inflight.engine.event_stream import EngineStopped, EventStream, settle
from inflight.engine.grammar_gate import GrammarGate
from inflight.engine.loop import EngineLoop
from inflight.engine.preparing import Prepared, Preparing

MANY = 16  # samples, from which on to take them in is work for a thread
COMMAND_SECONDS = 0.005  # for commands at a time; what is left waits for the next round, or whoever comes next

log = logging.getLogger(__name__)
Command = Callable[[], None]
T = TypeVar("T")


class Consumer(Protocol):
    """Whose requests they are. Its verbs are called in its event loop."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def requests(self) -> tuple[Request, ...]: ...

    def accept(self, refusal: Exception | None) -> None:
        """The requests were taken, or none of them: a RequestRefused or EngineStopped."""

    def put(self, events: list[Event]) -> None:
        """This has happened."""

    def break_off(self, fault: Exception) -> None:
        """Nothing comes any more."""


class AsyncBridge:
    """The local form of an `inflight.engine.client.EngineClient`."""

    def __init__(self, loop: EngineLoop):
        self._loop = loop
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._large: queue.SimpleQueue[Command] = queue.SimpleQueue()  # which no event loop runs
        self._turn = threading.Lock()  # who holds it may touch the engine loop and what stands below
        self._engine_waits = False  # for its turn
        self._wake = threading.Event()  # ends the engine's sleep when a command came
        self._streams: dict[str, Consumer] = {}
        self._preparing: Preparing[Consumer] = Preparing()
        self._stopped: str | None = None
        if loop.grammars is not None:
            loop.grammars.warm_up()
        self._thread = threading.Thread(target=self._main, name="inflight-engine", daemon=True)
        self._thread.start()

    async def open(self, *requests: Request) -> EventStream:
        """Hand in requests, all of them or none. Raises RequestRefused or EngineStopped."""
        stream = EventStream(requests, self.leave)
        self.hand_in(stream)
        try:
            await stream.accepted
        except asyncio.CancelledError:
            await stream.aclose()
            raise
        return stream

    def hand_in(self, consumer: Consumer) -> None:
        """As `open`, in the consumer's event loop; its `accept` is told."""
        grammars = [one.grammar for one in consumer.requests if one.grammar is not None]
        if grammars and self._loop.grammars is not None:
            return self._prepare(consumer, grammars, self._loop.grammars)
        self._hand_in(consumer)

    def _prepare(self, consumer: Consumer, grammars: list[Grammar], gate: GrammarGate) -> None:
        """Hand in the consumer's requests when their grammars are compiled."""
        self._preparing.begin(consumer, self._loop.clock.now())
        ready = partial(_call, consumer.loop, partial(self._prepared, consumer))
        try:
            preparation = gate.prepare(grammars, ready, consumer.requests[0].tenant)
        except RequestRefused as refusal:
            self._preparing.leave(consumer)
            return consumer.accept(refusal)
        is_ready = preparation.is_ready
        self._preparing.awaits(consumer, preparation)
        if is_ready:
            self._prepared(consumer, waited=False)

    def _prepared(self, consumer: Consumer, waited: bool = True) -> None:
        """Its grammars are compiled; in the consumer's event loop. It may have gone away meanwhile."""
        prepared = self._preparing.end(consumer)
        if prepared is not None:
            self._hand_in(consumer, self._loop.clock.now() - prepared.since if waited else 0.0, prepared)

    def _hand_in(self, consumer: Consumer, compiling: float = 0.0, prepared: Prepared | None = None) -> None:
        add = partial(self._add, consumer, compiling, prepared)
        if not _is_large(consumer):
            return self._send(add)
        self._large.put(add)
        consumer.loop.run_in_executor(None, self._run_large)  # the event loop has others to serve meanwhile

    def leave(self, consumer: Consumer) -> None:
        """It went away. Another's request may bear the id of one that was refused for it."""
        if self._preparing.leave(consumer):
            return
        abort = partial(self._abort_all, consumer)
        if not _is_large(consumer):
            self._send(abort)
        elif self._stopped is None:
            self._large.put(abort)
            self._wake.set()

    def abort(self, request_id: str) -> None:
        """End a request wherever it is; its stream ends with finish reason "abort". Unknown ids are ignored."""
        ended = self._preparing.abort(request_id, self._loop.clock.now())
        if ended is not None:
            consumer, events = ended
            return _call(consumer.loop, partial(_end_unheard, consumer, events))
        self._send(lambda: self._abort(request_id))

    async def snapshot(self) -> Snapshot:
        """Counts as they are while no plan is being made. Raises EngineStopped."""
        return await self.ask(lambda: self._with_compiling(self._loop.snapshot()))

    async def ask(self, question: Callable[[], T]) -> T:
        """What it says of the engine's loop while no plan is being made; it must be quick. Raises EngineStopped."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def answer() -> None:
            try:
                if self._stopped is not None:
                    raise EngineStopped(self._stopped)
                self._loop.take_transferred_idle()
                outcome: T | Exception = question()
            except Exception as fault:  # a mistake in counting is no reason to stop
                outcome = fault
            _call(loop, partial(settle, future, outcome))

        self._send(answer)
        return await future

    @property
    def stopped(self) -> str | None:
        """Why the engine works no more, or None while it does."""
        return self._stopped

    def close(self) -> None:
        """Abort what runs, end the thread and close the executor."""
        self._send(self._close)
        self._thread.join()

    # -- any thread ---------------------------------------------------------------------------------------------

    def _send(self, command: Command) -> None:
        self._inbox.put(command)
        self._run_commands()
        self._wake.set()

    def _run_large(self) -> None:
        """In a thread that has time for it."""
        self._run_commands(self._large)
        self._run_commands()  # that came meanwhile
        self._wake.set()

    def _run_commands(self, inbox: queue.SimpleQueue[Command] | None = None) -> None:
        """Run what is in the inbox unless somebody holds the turn, who will look at it again after giving it up. Not
        for long: whoever calls has other things to do, and the engine looks at what is left."""
        inbox, end = inbox or self._inbox, self._end_of_commands()
        while not inbox.empty() and time.monotonic() < end and self._turn.acquire(blocking=self._must_wait(inbox)):
            try:
                self._drain(inbox, end)
            finally:
                self._turn.release()

    def _must_wait(self, inbox: queue.SimpleQueue[Command]) -> bool:
        """For the turn: once the engine has stopped, an event loop that holds it looks at nothing large."""
        return inbox is self._large and self._stopped is not None

    def _end_of_commands(self) -> float:
        """Until when to run commands. Without an engine there is nobody to leave them to."""
        return time.monotonic() + COMMAND_SECONDS if self._stopped is None else math.inf

    # -- whoever holds the turn ---------------------------------------------------------------------------------

    def _drain(self, inbox: queue.SimpleQueue[Command], end: float) -> None:
        """Until the inbox is empty, or that time has come, or the engine wants its turn; one command at least."""
        while True:
            try:
                command = inbox.get_nowait()
            except queue.Empty:
                return
            try:
                command()
            except BaseException as fault:  # it may run in any consumer's thread, and is none of that one's faults
                self._break_down(fault)
            if time.monotonic() >= end or self._engine_waits:
                return

    def _with_compiling(self, snapshot: Snapshot) -> Snapshot:
        """And those that the engine has not heard of."""
        counts = self._preparing.sequences()
        if not counts:
            return snapshot
        lanes = tuple(replace(lane, compiling=counts.get(lane.name, 0)) for lane in snapshot.lanes)
        return replace(snapshot, lanes=lanes)

    def _add(self, consumer: Consumer, compiling: float, prepared: Prepared | None) -> None:
        """compiling: seconds that their grammars took. prepared: the grammars are kept until the requests are taken in,
        or refused."""
        try:
            self._take_in(consumer, compiling, () if prepared is None else prepared.aborted)
        finally:
            if prepared is not None:
                prepared.cancel()

    def _take_in(self, consumer: Consumer, compiling: float, aborted: Iterable[str]) -> None:
        """aborted: those of them that were, meanwhile."""
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
        except BaseException as fault:
            _call(consumer.loop, partial(consumer.accept, EngineStopped(_sentence(fault))))
            raise
        self._streams.update(dict.fromkeys((request.request_id for request in added), consumer))
        _call(consumer.loop, partial(consumer.accept, None))
        for request_id in aborted:
            self._abort(request_id)

    def _abort(self, request_id: str) -> None:
        if self._stopped is None:
            self._deliver(self._loop.abort(request_id))

    def _abort_all(self, consumer: Consumer) -> None:
        """Whose events nobody reads any more."""
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
        """The requests end in the engine's accounts too; their consumers are told why."""
        requests = list(self._streams)
        self._stop("The engine was closed.")
        for request_id in requests:
            self._loop.abort(request_id)

    def _break_down(self, fault: BaseException) -> None:
        """A fault must reach every consumer, or they would wait for ever."""
        log.critical("the engine stops by a fault", exc_info=fault)
        self._stop(_sentence(fault))

    def _stop(self, sentence: str) -> None:
        if self._stopped is None:
            self._stopped = sentence
        for consumer in set(self._streams.values()):
            _call(consumer.loop, partial(consumer.break_off, EngineStopped(sentence)))
        self._streams.clear()
        for consumer in self._preparing.clear():
            _call(consumer.loop, partial(consumer.accept, EngineStopped(sentence)))

    # -- engine thread ------------------------------------------------------------------------------------------

    def _main(self) -> None:
        self._turn.acquire()
        try:
            while self._stopped is None:
                self._wake.clear()  # before the inbox is looked at: who comes later ends the sleep that may follow
                for inbox in (self._inbox, self._large):
                    self._drain(inbox, self._end_of_commands())
                if not (self._inbox.empty() and self._large.empty()):
                    self._wake.set()  # whoever sent what is left has done so already
                if self._stopped is None:
                    self._advance()
        except BaseException as fault:  # also what native libraries raise when they panic
            self._break_down(fault)
        finally:
            for inbox in (self._inbox, self._large):
                self._drain(inbox, math.inf)
            try:
                self._loop.close()
            except Exception:  # it must not hide why the engine stopped, nor keep the turn from those who ask
                log.exception("the engine could not be closed properly")
            finally:
                self._turn.release()
                self._run_commands(self._large)
                self._run_commands()

    def _advance(self) -> None:
        """One round, or sleep until there is something to do."""
        others_turn = _OthersTurn(self._release_turn, self._take_turn)
        if self._loop.idle:
            with others_turn:
                self._wake.wait()
            return
        outcome = self._loop.advance(others_turn)
        if isinstance(outcome, WaitUntil):
            with others_turn:
                self._loop.clock.wait_until(outcome.time, self._wake)
        else:
            self._deliver(outcome)

    def _release_turn(self) -> None:
        """What came in before is run first."""
        self._turn.release()
        self._run_commands()

    def _take_turn(self) -> None:
        self._engine_waits = True
        self._turn.acquire()
        self._engine_waits = False


class _OthersTurn:
    """While entered, others may have the engine's turn."""

    def __init__(self, release: Command, take: Command):
        self._release, self._take = release, take

    def __enter__(self) -> None:
        self._release()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._take()


def _is_large(consumer: Consumer) -> bool:
    return sum(request.params.n for request in consumer.requests) > MANY


def _sentence(fault: BaseException) -> str:
    return f"The engine stopped by a fault: {type(fault).__name__}: {fault}. Restart it."


def _post(parcels: dict[Consumer, list[Event]]) -> None:
    """One call per event loop: each wakes it up, which costs more than many items do."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Consumer, list[Event]]]] = {}
    for consumer, events in parcels.items():
        by_loop.setdefault(consumer.loop, []).append((consumer, events))
    for loop, items in by_loop.items():
        _call(loop, partial(_put, items))


def _put(items: list[tuple[Consumer, list[Event]]]) -> None:
    for consumer, events in items:
        consumer.put(events)


def _end_unheard(consumer: Consumer, events: Sequence[Event]) -> None:
    """Of requests that the engine never heard of."""
    consumer.accept(None)
    consumer.put(list(events))


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the consumer's event loop is closed: nobody is left to tell
        loop.call_soon_threadsafe(callback)
