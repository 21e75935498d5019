"""The loop: plan, submit, commit; the one place where scheduler, executor and clock meet.

Knows no threads and no streams: `advance` does one round and returns its events; callers decide where it runs (in the
caller's thread for `LLM.generate`, in a thread of its own under `bridge`). With depth 2 the next plan is made and
submitted while the one before it runs. Watchers (a record file, a server's metrics) are told of all that happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from inflight.core.events import Event
from inflight.core.plan import BatchPlan, Executor, Pending, StepResult, WaitUntil
from inflight.core.request import Request, RequestRefused
from inflight.core.scheduler import Scheduler
from inflight.core.snapshot import Snapshot
from inflight.engine.clock import Clock


class Watcher(Protocol):
    """Told of what happens, in the order in which it happens, in the engine's turn: it must be quick. Times are the
    engine's clock."""

    def added(self, request: Request, now: float) -> None:
        """A request was accepted."""

    def refused(self, request: Request, refusal: RequestRefused, now: float) -> None:
        """A request was not."""

    def planned(self, plan: BatchPlan) -> None:
        """A plan is about to be computed."""

    def step(self, plan: BatchPlan, result: StepResult, planned: float, committed: float) -> None:
        """It was computed; its events follow."""

    def events(self, events: list[Event], now: float) -> None:
        """Tokens and ends."""

    def close(self) -> None:
        """Nothing comes any more."""


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
        watchers: Iterable[Watcher] = (),
    ):
        self.clock = clock
        self._scheduler = scheduler
        self._executor = executor
        self._depth = depth
        self._watchers = list(watchers)
        self._flights: deque[_Flight] = deque()

    @property
    def idle(self) -> bool:
        return self._scheduler.idle and not self._flights

    def snapshot(self) -> Snapshot:
        return self._scheduler.snapshot()

    def watch(self, watcher: Watcher) -> None:
        """Tell one more, from now on."""
        self._watchers.append(watcher)

    def add(self, request: Request) -> None:
        """Raises RequestRefused."""
        now = self.clock.now()
        try:
            self._scheduler.add(request, now)
        except RequestRefused as refusal:
            for watcher in self._watchers:
                watcher.refused(request, refusal, now)
            raise
        for watcher in self._watchers:
            watcher.added(request, now)

    def abort(self, request_id: str) -> list[Event]:
        now = self.clock.now()
        events = self._scheduler.abort(request_id, now)
        for watcher in self._watchers:
            watcher.events(events, now)
        return events

    def advance(self, aside: AbstractContextManager[object] | None = None) -> list[Event] | WaitUntil:
        """One round: fill the pipeline, then commit its oldest step.

        Returns the events; WaitUntil when work exists but may not start yet; an empty list when there is none.
        aside: entered while the executor computes; then others may add and abort.
        """
        aside = aside or nullcontext()
        outcome = self._fill(aside)
        if self._flights:
            return self._commit(self._flights.popleft(), aside)
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
        self._executor.close()
        for watcher in self._watchers:
            watcher.close()

    def _fill(self, aside: AbstractContextManager[object]) -> WaitUntil | None:
        while len(self._flights) < self._depth:
            now = self.clock.now()
            plan = self._scheduler.plan(now)
            if not isinstance(plan, BatchPlan):
                return plan
            for watcher in self._watchers:
                watcher.planned(plan)
            with aside:
                pending = self._executor.submit(plan)
            self._flights.append(_Flight(plan, pending, now))
        return None

    def _commit(self, flight: _Flight, aside: AbstractContextManager[object]) -> list[Event]:
        with aside:
            result = flight.pending.result()
        self.clock.passed(result.seconds)
        now = self.clock.now()
        events = self._scheduler.commit(flight.plan, result, now)
        for watcher in self._watchers:
            watcher.step(flight.plan, result, flight.planned, now)
            watcher.events(events, now)
        return events
