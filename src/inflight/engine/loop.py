"""The engine loop: plan, submit, commit.

`advance` does one round and returns its events; the caller decides in which thread (its own for `LLM.generate`, a
thread of the engine under `bridge`). With depth 2 the next plan is made and submitted while the one before it runs.
Where nothing can be computed before a transfer has ended, each round waits a moment for one.

With a suspender a step may be suspended for short prompts (`core.types.suspension`): the round ends then, and the next
one computes an interim step, or goes on.

A step is a transaction. If a fault or Ctrl-C comes before its result, it is committed as failed, and the exception goes
on. If a method of the scheduler itself is interrupted, all requests end with an error and the scheduler is reset.
Either way the next call finds an engine that works, and the observers are notified of all that was done.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import TracebackType

from msgspec import Struct, structs

from inflight.core.estimation.latency import LatencyModel
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.scheduling.stats import SchedulerDump, SchedulerStats
from inflight.core.tenants import TenantUsage
from inflight.core.types.events import Event
from inflight.core.types.executor import Executor, Pending
from inflight.core.types.plan import BatchPlan, StepResult, Transferred, WaitForTransfers, WaitUntil
from inflight.core.types.request import Request, RequestRefused
from inflight.core.types.sampling import Grammar
from inflight.core.types.suspension import Suspender
from inflight.core.types.timings import Timings
from inflight.engine.clock import Clock
from inflight.engine.observers import EngineObserver, EngineObservers, Recovery
from inflight.engine.protocols import GrammarGate, RemoteKV
from inflight.engine.suspended_steps import SuspendedSteps

POLL_SECONDS = 0.01  # for which a round waits for a transfer; a request that comes meanwhile waits as long
CLOSING_SECONDS = 5.0  # at the end, for blocks that are still to be stored
_KEEPS_LOCK = nullcontext()
INTERRUPTED = "The engine was interrupted while it planned; send the request again."


class _Flight(Struct, eq=False):
    """A step in flight. pending: None before the executor has the plan, and once its result was asked for."""

    plan: BatchPlan
    planned: float
    pending: Pending | None = None

    def result(self, step_error: str | None) -> StepResult:
        """Return the step's result, once. step_error: why it has none."""
        pending, self.pending = self.pending, None
        if pending is None:
            assert step_error is not None, "only an interrupted step has no result to come"
            return StepResult(self.plan.step, (), 0.0, error=step_error)
        return pending.result()


class _SchedulerCall:
    """Entered while the scheduler's state changes; `interrupted` after an exception in between."""

    __slots__ = ("interrupted",)

    def __init__(self) -> None:
        self.interrupted = False

    def __enter__(self) -> None:
        self.interrupted = True  # beforehand, since Ctrl-C may come between any two instructions

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.interrupted = error is not None and not isinstance(error, RequestRefused)


class EngineLoop:
    """One engine: a scheduler, an executor and a clock."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock,
        *,
        depth: int = 1,
        observers: Iterable[EngineObserver] = (),
        grammars: GrammarGate | None = None,
        remote_kv: RemoteKV | None = None,
        suspender: Suspender | None = None,
    ):
        """Create an engine.

        Args:
            scheduler: Makes the plans.
            executor: Computes them.
            clock: Real or virtual time.
            depth: Steps in flight.
            observers: Notified of all that happens.
            grammars: Compiles grammars; None: the executor supports none.
            remote_kv: Tiers and peers of the KV cache; None: there are none.
            suspender: Suspends the executor's steps, at depth 1; None: no step is suspended.
        """
        assert suspender is None or depth == 1, "steps are not planned beside one that may be suspended"
        self._suspended = SuspendedSteps(suspender, scheduler, clock)
        self._remote_kv = remote_kv
        self.clock = clock
        self.grammars = grammars
        self._scheduler = scheduler
        self._executor = executor
        self._depth = depth
        self._observers = EngineObservers(observers)
        self._flights: deque[_Flight] = deque()
        self._scheduler_call = _SchedulerCall()
        self._step_error: str | None = None  # a sentence: steps without a result are to be committed as failed
        self._undelivered: list[Event] = []  # committed, and not returned yet
        self._polls = False  # the engine's thread polls the executor, with the engine unlocked

    @property
    def idle(self) -> bool:
        """Whether there is neither work nor an event to return."""
        return self._scheduler.idle and not self._flights and not self._undelivered

    @property
    def latency(self) -> LatencyModel:
        """Learned durations of steps; any thread may read it."""
        return self._scheduler.latency

    def stats(self) -> SchedulerStats:
        """Return counts of this moment."""
        stats = replace(self._scheduler.stats(), suspended=self._suspended.stats())
        if self._remote_kv is not None:
            folder, exports = self._remote_kv.folder_stats(), self._remote_kv.export_stats()
            stats = replace(stats, folder=folder, kv_exports=exports)
        return stats if self.grammars is None else replace(stats, grammars=self.grammars.stats())

    def dump(self, whole: bool = False, blocks: bool = True) -> SchedulerDump:
        """Return what runs, waits and holds blocks: see the scheduler."""
        dump = self._scheduler.dump(whole, blocks)
        return dump._replace(folder=self._remote_kv.folder_stats()) if blocks and self._remote_kv is not None else dump

    def account(self, request_id: str) -> tuple[Request, Timings] | None:
        """Return a live request and its timings so far; None if it is unknown."""
        return self._scheduler.account(request_id, self.clock.now())

    def sync_tenant_usage(self, elsewhere: TenantUsage) -> TenantUsage:
        """Take in the service of other engines, and return this engine's: see the scheduler."""
        self._recover_broken_step()
        now = self.clock.now()
        with self._scheduler_call:
            given = self._scheduler.sync_tenant_usage(elsewhere)
            if elsewhere:
                service = dict(elsewhere)  # a repeated notice is known by its objects
                self._observers.put(lambda: self._observers.served_elsewhere(service, now))
        self._observers.deliver()
        return given

    def reset_prefix_cache(self) -> int | None:
        """Drop all cached content of the device and the host; return the number of the device's blocks that had some,
        None, and no change, while there is work or a transfer."""
        self._recover_broken_step()
        if not self.idle or self._scheduler.transfers_out or self._polls:
            return None
        now = self.clock.now()
        with self._scheduler_call:
            dropped = self._scheduler.reset_prefix_cache()
            self._observers.prefix_cache_reset(now)
        return dropped

    def add_observer(self, observer: EngineObserver) -> None:
        """Notify one more observer from now on."""
        self._observers.add(observer)

    @property
    def observer_error(self) -> Exception | None:
        """The error for which an observer was dropped: a record is then not whole."""
        return self._observers.error

    def add(self, request: Request, compiling: float = 0.0) -> None:
        """Add a request. Raises RequestRefused. compiling: seconds that its grammar took."""
        self._recover_broken_step()
        now = self.clock.now()
        try:
            if request.grammar is not None:
                _check_grammar(request.grammar, self.grammars)
            with self._scheduler_call:
                self._scheduler.add(request, now, compiling)
                self._observers.added(request, now)
        except RequestRefused as refusal:
            self._observers.refused(request, refusal, now)
            raise

    def abort(self, request_id: str) -> list[Event]:
        """End a request, and return its events; an unknown id has none."""
        self._recover_broken_step()
        now = self.clock.now()
        with self._scheduler_call:
            events = self._scheduler.abort(request_id, now)
            self._observers.put(lambda: self._observers.events(events, now))
        self._observers.deliver()
        if not self._undelivered:
            return events
        before = [event for event in self._undelivered if event.request_id == request_id]  # of a step that failed
        self._undelivered = [event for event in self._undelivered if event.request_id != request_id]
        return before + events

    def advance(
        self, unlocked: AbstractContextManager[object] | None = None, until: float = math.inf
    ) -> list[Event] | WaitUntil:
        """Do one round: fill the pipeline, then commit its oldest step, or an interim step of a suspended one.

        Args:
            unlocked: Entered while the executor computes; other threads may add and abort then.
            until: When the caller, which adds requests between rounds, has the next one; a step that may be suspended
                is suspended then.

        Returns:
            The events; WaitUntil when there is work that may not start yet; no event when there is no work, it waits
            for a transfer, or a step was suspended.
        """
        self._recover_broken_step()
        if self._undelivered:
            return self._take_events()
        unlocked = unlocked or _KEEPS_LOCK
        self._suspended.until = until
        try:
            outcome: WaitUntil | WaitForTransfers | None = None
            if self._suspended.rests:
                self._serve_suspended(unlocked)
            else:
                outcome = self._fill(unlocked)
            if self._suspended.rests and len(self._flights) == 1:  # and no interim step is to be committed
                return []
            if self._flights:
                self._commit(unlocked)
                return self._take_events()
            if isinstance(outcome, WaitForTransfers):
                self._wait_for_transfers(unlocked)
                return self._take_events()
        except BaseException as fault:
            self._step_error = f"The step was interrupted ({type(fault).__name__}); send the request again."
            self._recover_broken_step()
            raise
        if outcome is None and not self._scheduler.idle:
            # It would wait for ever, without a word in the log.
            raise RuntimeError("the scheduler has work, but no plan and nothing in flight")
        return outcome if isinstance(outcome, WaitUntil) else []

    def take_transferred(self) -> None:
        """Report transfers to the scheduler that have ended since the last step, on virtual time."""
        self._recover_broken_step()
        self._wait_for_transfers(nullcontext())

    def take_transferred_idle(self) -> None:
        """Report transfers to the scheduler that have ended since the last step, where no step will do so.

        Blocks that were held for a peer are free once the peer has them, and counts must say so.
        """
        if self.idle and self._scheduler.transfers_out and not self._polls:
            self._recover_broken_step()
            self._wait_for_transfers(nullcontext(), 0.0)

    def run(self) -> list[Event]:
        """Advance until there is no work, and return all events in order."""
        events: list[Event] = []
        while not self.idle:
            outcome = self.advance()
            if isinstance(outcome, WaitUntil):
                self.clock.wait_until(outcome.time)
            else:
                events += outcome
        return events

    def close(self) -> None:
        """Store what is left to store, if no request runs and as far as the time suffices; then close executor and
        observers."""
        try:
            last = time.monotonic() + CLOSING_SECONDS
            while not self._scheduler.has_requests and not self.idle and time.monotonic() < last:
                self.advance()
        finally:
            try:
                self._executor.close()
            finally:
                self._observers.deliver()
                self._observers.close()

    def _fill(self, unlocked: AbstractContextManager[object]) -> WaitUntil | WaitForTransfers | None:
        while len(self._flights) < self._depth:
            now = self.clock.now()
            with self._scheduler_call:
                plan = self._scheduler.plan(now)
                if not isinstance(plan, BatchPlan):
                    if not self._scheduler.idle:
                        self._observers.attempted(now)
                    return plan
                flight = _Flight(plan, now)
                self._flights.append(flight)
                if self._observers:
                    self._observers.planned(plan)
            self._suspended.begin(now)
            with unlocked:
                flight.pending = self._executor.submit(plan)
            self._suspended.submitted()
        return None

    def _serve_suspended(self, unlocked: AbstractContextManager[object]) -> None:
        """Compute an interim step, or go on with the suspended one."""
        now, suspended, plan = self.clock.now(), self._flights[0].plan, None
        if self._suspended.has_interim:
            with self._scheduler_call:
                plan = self._scheduler.plan_interim(suspended, now)
                if plan is None:
                    self._observers.attempted(now, suspended)
                else:
                    flight = _Flight(plan, now)
                    self._flights.append(flight)
                    self._observers.planned(plan)
        if plan is None:
            self._suspended.go_on(now, unlocked)
            return
        with unlocked:
            flight.pending = self._executor.submit(plan)

    def _commit(self, unlocked: AbstractContextManager[object]) -> None:
        """Commit the oldest step, or the interim step within it."""
        is_interim = self._flights[-1].plan.within is not None
        flight = self._flights[-1 if is_interim else 0]
        with unlocked:
            result = flight.result(self._step_error)
        if self._scheduler.transfers_out:
            result = structs.replace(result, transferred=self._transferred(0.0))
        self.clock.passed(result.seconds if is_interim else self._suspended.seconds_left(result.seconds))
        now = self.clock.now()
        with self._scheduler_call:
            events = self._scheduler.commit(flight.plan, result, now)
            if self._observers:
                self._observers.put(
                    lambda: self._observers.step(flight.plan, result, flight.planned, now),
                    lambda: self._observers.events(events, now),
                )
            self._flights.remove(flight)
            self._undelivered += events
        self._observers.deliver()

    def _wait_for_transfers(self, unlocked: AbstractContextManager[object], seconds: float = POLL_SECONDS) -> None:
        self._polls = True
        try:
            with unlocked:
                ended = self._transferred(seconds)
        finally:
            self._polls = False
        now = self.clock.now()
        with self._scheduler_call:
            events = self._scheduler.transferred(ended, now)
            if ended:
                self._observers.put(
                    lambda: self._observers.transferred(ended, now), lambda: self._observers.events(events, now)
                )
            self._undelivered += events
        self._observers.deliver()

    def _transferred(self, seconds: float) -> tuple[Transferred, ...]:
        """Return ended transfers. Where the executor has none in flight, those still out are lost with their step."""
        ended = self._executor.poll(seconds)
        if ended is None:
            return tuple(
                Transferred(transfer_id, "The transfer was interrupted.")
                for transfer_id in self._scheduler.transfers_out
            )
        return ended

    def _take_events(self) -> list[Event]:
        """Return events that were not returned yet."""
        events, self._undelivered = self._undelivered, []
        return events

    def _recover_broken_step(self) -> None:
        """After an interruption, notify the observers of all that is done, and commit every step in flight, as failed
        where it has no result.

        If it is interrupted itself, the next call goes on with it.
        """
        self._observers.deliver()
        if self._scheduler_call.interrupted:
            lost = [(flight.plan, flight.planned) for flight in self._flights]
            self._suspended.drop()
            if self._remote_kv is not None:
                self._remote_kv.abandon()
            while self._executor.poll(POLL_SECONDS) is not None:
                pass  # the blocks that it copies are about to be freed
            now = self.clock.now()
            events = self._scheduler.recover(INTERRUPTED, now)
            recovery = Recovery(now, self._scheduler.numbers, INTERRUPTED)
            self._observers.put(
                lambda: self._observers.recovered(recovery, lost), lambda: self._observers.events(events, now)
            )
            self._undelivered += events
            self._flights.clear()
            self._scheduler_call.interrupted = False
            self._observers.deliver()
        while self._step_error is not None and self._flights:
            self._commit(nullcontext())
        self._step_error = None


def _check_grammar(grammar: Grammar, grammars: GrammarGate | None) -> None:
    """Check that the executor can follow a grammar. Raises RequestRefused."""
    if grammars is None:
        raise RequestRefused(
            "The request has a grammar, but this executor supports none; leave the grammar out.",
            field="grammar",
        )
    grammars.check(grammar)
