"""The loop: plan, submit, commit; the one place where scheduler, executor and clock meet.

Knows no threads and no streams: `advance` does one round and returns its events; callers decide where it runs (in the
caller's thread for `LLM.generate`, in a thread of its own under `bridge`). With depth 2 the next plan is made and
submitted while the one before it runs. Where nothing can be computed before a transfer of blocks has ended, it waits
for one, a moment in each round. Observers (a record file, a server's metrics) are told of all that happens.

A step is a transaction. Whatever ends it before its result is there (a fault, Ctrl-C), it is committed as failed, and
the exception goes on. Where a verb of the scheduler itself was broken off, everybody ends with an error, and its
accounts begin anew. Either way the next call finds an engine that works.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import TracebackType

from msgspec import Struct, structs

from inflight.core.estimation.latency import LatencyModel
from inflight.core.scheduling.census import Census
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.scheduling.snapshot import Snapshot
from inflight.core.tenants import TenantUsage
from inflight.core.types.events import Event
from inflight.core.types.plan import BatchPlan, Executor, Pending, StepResult, Transferred, WaitForTransfers, WaitUntil
from inflight.core.types.request import Request, RequestRefused
from inflight.core.types.sampling import Grammar
from inflight.core.types.timings import Timings
from inflight.engine.clock import Clock
from inflight.engine.grammar_gate import GrammarGate
from inflight.engine.observers import EngineObserver, EngineObservers
from inflight.engine.places import Places

POLL_SECONDS = 0.01  # for which a round waits for a transfer; who comes meanwhile waits as long
CLOSING_SECONDS = 5.0  # at the end, for what is to be kept


class _Flight(Struct):
    """pending: None before the executor has the plan, and once its result was asked for."""

    plan: BatchPlan
    planned: float
    pending: Pending | None = None


class _Verb:
    """Entered while the scheduler's accounts change: `broken` where an exception came in between."""

    __slots__ = ("broken",)

    def __init__(self) -> None:
        self.broken = False

    def __enter__(self) -> None:
        self.broken = True  # beforehand, since Ctrl-C may come between any two instructions

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.broken = error is not None and not isinstance(error, RequestRefused)


class EngineLoop:
    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock,
        *,
        depth: int = 1,
        observers: Iterable[EngineObserver] = (),
        grammars: GrammarGate | None = None,
        places: Places | None = None,
    ):
        """grammars: None: the executor binds no output to one. places: of blocks beyond the device; None: there are
        none."""
        self._places = places
        self.clock = clock
        self.grammars = grammars
        self._scheduler = scheduler
        self._executor = executor
        self._depth = depth
        self._observers = EngineObservers(observers)
        self._flights: deque[_Flight] = deque()
        self._verb = _Verb()
        self._broken_off: str | None = None  # a sentence: a step has no result, and is to be committed as failed
        self._untold: list[Event] = []  # committed, and not handed out yet
        self._polls = False  # the engine's thread asks the executor about transfers, with the turn given to others

    @property
    def idle(self) -> bool:
        return self._scheduler.idle and not self._flights and not self._untold

    @property
    def latency(self) -> LatencyModel:
        """What steps take, as the scheduler has learnt; to be read in any thread."""
        return self._scheduler.latency

    def snapshot(self) -> Snapshot:
        snapshot = self._scheduler.snapshot()
        if self._places is not None:
            there = self._places.folder_stats(), self._places.handed_over()
            snapshot = replace(snapshot, folder=there[0], handed_over=there[1])
        return snapshot if self.grammars is None else replace(snapshot, grammars=self.grammars.stats())

    def census(self, whole: bool = False, blocks: bool = True) -> Census:
        census = self._scheduler.census(whole, blocks)
        return census._replace(folder=self._places.folder_stats()) if blocks and self._places is not None else census

    def account(self, request_id: str) -> tuple[Request, Timings] | None:
        """See the scheduler."""
        return self._scheduler.account(request_id, self.clock.now())

    def exchange_service(self, elsewhere: TenantUsage) -> TenantUsage:
        """Share tenants' service with other engines: see the scheduler."""
        self._mend()
        now = self.clock.now()
        with self._verb:
            given = self._scheduler.exchange_service(elsewhere)
        if elsewhere:
            self._observers.served_elsewhere(elsewhere, now)
        return given

    def add_observer(self, observer: EngineObserver) -> None:
        """Notify one more observer from now on."""
        self._observers.add(observer)

    @property
    def observer_error(self) -> Exception | None:
        """The error for which an observer was dropped: a record is then not whole."""
        return self._observers.error

    def add(self, request: Request, compiling: float = 0.0) -> None:
        """Raises RequestRefused. compiling: seconds that its grammar has kept it."""
        self._mend()
        now = self.clock.now()
        try:
            if request.grammar is not None:
                self._check_grammar(request.grammar)
            with self._verb:
                self._scheduler.add(request, now, compiling)
        except RequestRefused as refusal:
            self._observers.refused(request, refusal, now)
            raise
        self._observers.added(request, now)

    def _check_grammar(self, grammar: Grammar) -> None:
        """Raises RequestRefused."""
        if self.grammars is None:
            raise RequestRefused(
                "The request's output is to follow a grammar, but this executor binds none to one; leave it out.",
                field="grammar",
            )
        self.grammars.check(grammar)

    def abort(self, request_id: str) -> list[Event]:
        self._mend()
        now = self.clock.now()
        with self._verb:
            events = self._scheduler.abort(request_id, now)
        self._observers.events(events, now)
        if self._untold:  # of a step that was broken off
            events = [event for event in self._untold if event.request_id == request_id] + events
            self._untold = [event for event in self._untold if event.request_id != request_id]
        return events

    def advance(self, others_turn: AbstractContextManager[object] | None = None) -> list[Event] | WaitUntil:
        """One round: fill the pipeline, then commit its oldest step.

        Returns the events; WaitUntil when work exists but may not start yet; an empty list when there is none, or it
        waits for a transfer of blocks.
        others_turn: entered while the executor computes; then others may add and abort.
        """
        self._mend()
        if self._untold:
            return self._told()
        others_turn = others_turn or nullcontext()
        try:
            outcome = self._fill(others_turn)
            if self._flights:
                self._commit(others_turn)
                return self._told()
            if isinstance(outcome, WaitForTransfers):
                self._wait_for_transfers(others_turn)
                return self._told()
        except BaseException as fault:
            self._broken_off = f"The step was broken off ({type(fault).__name__}); ask again."
            self._mend()
            raise
        if outcome is None and not self._scheduler.idle:
            # Waiting would be for ever, and silently.
            raise RuntimeError("the scheduler has work, but no plan and nothing in flight")
        return outcome if isinstance(outcome, WaitUntil) else []

    def take_transferred(self) -> None:
        """Have the scheduler hear what has ended of transfers since the last step, where on virtual time that is known
        only afterwards."""
        self._mend()
        self._wait_for_transfers(nullcontext())

    def take_transferred_idle(self) -> None:
        """Take in transfers that ended since the last step, where no step will do so: blocks that were held for a peer
        are free once the peer has them, and counts that are asked for must say so."""
        if self.idle and self._scheduler.transfers_out and not self._polls:
            self._mend()
            self._wait_for_transfers(nullcontext(), 0.0)

    def run(self) -> list[Event]:
        """Advance until nothing is left; all events in order."""
        events: list[Event] = []
        while not self.idle:
            outcome = self.advance()
            if isinstance(outcome, WaitUntil):
                self.clock.wait_until(outcome.time)
            else:
                events += outcome
        return events

    def close(self) -> None:
        try:
            self._keep_the_rest()
        finally:
            self._close()

    def _keep_the_rest(self) -> None:
        """What is still to be stored for later is, where nobody runs any more, and as far as it takes no longer than a
        moment."""
        last = time.monotonic() + CLOSING_SECONDS
        while not self._scheduler.has_requests and not self.idle and time.monotonic() < last:
            self.advance()

    def _close(self) -> None:
        try:
            self._executor.close()
        finally:
            self._observers.close()

    def _fill(self, others_turn: AbstractContextManager[object]) -> WaitUntil | WaitForTransfers | None:
        while len(self._flights) < self._depth:
            now = self.clock.now()
            with self._verb:
                plan = self._scheduler.plan(now)
                if not isinstance(plan, BatchPlan):
                    return plan
                flight = _Flight(plan, now)
                self._flights.append(flight)
            self._observers.planned(plan)
            with others_turn:
                flight.pending = self._executor.submit(plan)
        return None

    def _commit(self, others_turn: AbstractContextManager[object]) -> None:
        """The oldest step."""
        flight = self._flights[0]
        with others_turn:
            result = self._result(flight)
        if self._scheduler.transfers_out:
            result = structs.replace(result, transferred=self._transferred(0.0))
        self.clock.passed(result.seconds)
        now = self.clock.now()
        with self._verb:
            events = self._scheduler.commit(flight.plan, result, now)
            self._flights.popleft()
            self._untold += events
        self._observers.step(flight.plan, result, flight.planned, now)
        self._observers.events(events, now)

    def _wait_for_transfers(self, others_turn: AbstractContextManager[object], seconds: float = POLL_SECONDS) -> None:
        self._polls = True
        try:
            with others_turn:
                ended = self._transferred(seconds)
        finally:
            self._polls = False
        now = self.clock.now()
        with self._verb:
            events = self._scheduler.transferred(ended, now)
            self._untold += events
        if ended:
            self._observers.transferred(ended, now)
            self._observers.events(events, now)

    def _transferred(self, seconds: float) -> tuple[Transferred, ...]:
        """What the executor tells of transfers. When it has none under way, those that nothing was told of are lost:
        their step was broken off."""
        ended = self._executor.poll(seconds)
        if ended is None:
            return tuple(
                Transferred(transfer_id, "The transfer was broken off.")
                for transfer_id in self._scheduler.transfers_out
            )
        return ended

    def _result(self, flight: _Flight) -> StepResult:
        pending, flight.pending = flight.pending, None
        if pending is None:
            assert self._broken_off is not None, "only a step that was broken off has no result to come"
            return StepResult(flight.plan.step, (), 0.0, error=self._broken_off)
        return pending.result()

    def _told(self) -> list[Event]:
        """What has come and was not handed out."""
        events, self._untold = self._untold, []
        return events

    def _mend(self) -> None:
        """Bring to its end what was broken off, if anything was: every step in flight is committed, as failed where it
        has no result. Broken off itself, it goes on with the next call."""
        if self._verb.broken:
            self._flights.clear()
            if self._places is not None:
                self._places.abandon()
            while self._executor.poll(POLL_SECONDS) is not None:
                pass  # the blocks that it copies are about to be free
            now = self.clock.now()
            events = self._scheduler.recover("The engine was interrupted while it planned; ask again.", now)
            self._untold += events
            self._verb.broken = False
            self._observers.events(events, now)
        while self._broken_off is not None and self._flights:
            self._commit(nullcontext())
        self._broken_off = None
