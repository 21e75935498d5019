"""The loop: plan, submit, commit; the one place where scheduler, executor and clock meet.

Knows no threads and no streams: `advance` does one round and returns its events; callers decide where it runs (in the
caller's thread for `LLM.generate`, in a thread of its own under `bridge`). With depth 2 the next plan is made and
submitted while the one before it runs. Observers (a record file, a server's metrics) are told of all that happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.scheduling.snapshot import Snapshot
from inflight.core.types.events import Event
from inflight.core.types.plan import BatchPlan, Executor, Pending, WaitUntil
from inflight.core.types.request import Request, RequestRefused
from inflight.engine.clock import Clock
from inflight.engine.observers import EngineObserver, EngineObservers


@dataclass(frozen=True, slots=True)
class _Flight:
    plan: BatchPlan
    pending: Pending
    planned: float


class EngineLoop:
    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock,
        *,
        depth: int = 1,
        observers: Iterable[EngineObserver] = (),
    ):
        self.clock = clock
        self._scheduler = scheduler
        self._executor = executor
        self._depth = depth
        self._observers = EngineObservers(observers)
        self._flights: deque[_Flight] = deque()

    @property
    def idle(self) -> bool:
        return self._scheduler.idle and not self._flights

    def snapshot(self) -> Snapshot:
        return self._scheduler.snapshot()

    def watch(self, observer: EngineObserver) -> None:
        """Tell one more, from now on."""
        self._observers.join(observer)

    @property
    def watcher_fault(self) -> Exception | None:
        """Why a observer was told nothing more, if one was dropped: a record that is not whole."""
        return self._observers.fault

    def add(self, request: Request) -> None:
        """Raises RequestRefused."""
        now = self.clock.now()
        try:
            self._scheduler.add(request, now)
        except RequestRefused as refusal:
            self._observers.refused(request, refusal, now)
            raise
        self._observers.added(request, now)

    def abort(self, request_id: str) -> list[Event]:
        now = self.clock.now()
        events = self._scheduler.abort(request_id, now)
        self._observers.events(events, now)
        return events

    def advance(self, others_turn: AbstractContextManager[object] | None = None) -> list[Event] | WaitUntil:
        """One round: fill the pipeline, then commit its oldest step.

        Returns the events; WaitUntil when work exists but may not start yet; an empty list when there is none.
        others_turn: entered while the executor computes; then others may add and abort.
        """
        others_turn = others_turn or nullcontext()
        outcome = self._fill(others_turn)
        if self._flights:
            return self._commit(self._flights.popleft(), others_turn)
        if outcome is None and not self._scheduler.idle:
            # Waiting would be for ever, and silently.
            raise RuntimeError("the scheduler has work, but no plan and nothing in flight")
        return outcome if isinstance(outcome, WaitUntil) else []

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
            self._executor.close()
        finally:
            self._observers.close()

    def _fill(self, others_turn: AbstractContextManager[object]) -> WaitUntil | None:
        while len(self._flights) < self._depth:
            now = self.clock.now()
            plan = self._scheduler.plan(now)
            if not isinstance(plan, BatchPlan):
                return plan
            self._observers.planned(plan)
            with others_turn:
                pending = self._executor.submit(plan)
            self._flights.append(_Flight(plan, pending, now))
        return None

    def _commit(self, flight: _Flight, others_turn: AbstractContextManager[object]) -> list[Event]:
        with others_turn:
            result = flight.pending.result()
        self.clock.passed(result.seconds)
        now = self.clock.now()
        events = self._scheduler.commit(flight.plan, result, now)
        self._observers.step(flight.plan, result, flight.planned, now)
        self._observers.events(events, now)
        return events
