"""The loop: plan, submit, commit; the one place where scheduler, executor and clock meet.

Knows no threads and no streams: `advance` does one round and returns its events; callers decide where it runs (in the
caller's thread for `LLM.generate`, in a thread of its own under `bridge`). With depth 2 the next plan is made and
submitted while the one before it runs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from inflight.core.events import Event
from inflight.core.plan import BatchPlan, Executor, Pending, WaitUntil
from inflight.core.request import Request
from inflight.core.scheduler import Scheduler, Snapshot
from inflight.engine.clock import Clock
from inflight.engine.recorder import Recorder


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
        recorder: Recorder | None = None,
    ):
        self.clock = clock
        self._scheduler = scheduler
        self._executor = executor
        self._depth = depth
        self._recorder = recorder
        self._flights: deque[_Flight] = deque()

    @property
    def idle(self) -> bool:
        return self._scheduler.idle and not self._flights

    def snapshot(self) -> Snapshot:
        return self._scheduler.snapshot()

    def add(self, request: Request) -> None:
        """Raises RequestRefused."""
        now = self.clock.now()
        self._scheduler.add(request, now)
        if self._recorder is not None:
            self._recorder.added(request, now)

    def abort(self, request_id: str) -> list[Event]:
        now = self.clock.now()
        events = self._scheduler.abort(request_id, now)
        if self._recorder is not None:
            self._recorder.events(events, now)
        return events

    def advance(self) -> list[Event] | WaitUntil:
        """One round: fill the pipeline, then commit its oldest step.

        Returns the events; WaitUntil when work exists but may not start yet; an empty list when there is none.
        """
        outcome = self._fill()
        if self._flights:
            return self._commit(self._flights.popleft())
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
        if self._recorder is not None:
            self._recorder.close()

    def _fill(self) -> WaitUntil | None:
        while len(self._flights) < self._depth:
            now = self.clock.now()
            plan = self._scheduler.plan(now)
            if not isinstance(plan, BatchPlan):
                return plan
            if self._recorder is not None:
                self._recorder.planned(plan)
            self._flights.append(_Flight(plan, self._executor.submit(plan), now))
        return None

    def _commit(self, flight: _Flight) -> list[Event]:
        result = flight.pending.result()
        self.clock.passed(result.seconds)
        now = self.clock.now()
        events = self._scheduler.commit(flight.plan, result, now)
        if self._recorder is not None:
            self._recorder.step(flight.plan, result, flight.planned, now)
            self._recorder.events(events, now)
        return events
