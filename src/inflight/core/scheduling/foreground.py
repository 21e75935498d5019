"""Foreground work as strategies with deadlines see it: who runs, who comes next, and when the step can begin."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from inflight.core.estimation.latency import LatencyModel
from inflight.core.queueing.lanes import Lanes
from inflight.core.scheduling.state import SchedulerState
from inflight.core.sequence import Sequence, SequenceView
from inflight.core.strategies import StepShape
from inflight.core.types.features import features
from inflight.core.types.plan import BatchPlan


class ForegroundWork:
    def __init__(self, state: SchedulerState, latency: LatencyModel):
        """latency: the scheduler's model of step time."""
        self._state, self._latency = state, latency
        self._in_flight: deque[BatchPlan] = deque()
        self._began = 0.0  # when the first of these began

    def planned(self, plan: BatchPlan) -> None:
        """Note a step that is computed next."""
        if not self._in_flight:
            self._began = self._state.time.now
        self._in_flight.append(plan)

    def committed(self) -> None:
        """Note that the first step in flight has ended."""
        self._in_flight.popleft()
        self._began = self._state.time.now

    def begin(self) -> float:
        """Return when the next step can begin: now, or when those in flight are expected to end."""
        now = self._state.time.now
        if not self._in_flight or not self._latency.ready:
            return now
        expected = sum(self._latency.seconds(features(plan)) for plan in self._in_flight)
        return max(now, min(self._began, now) + expected)

    def running(self) -> list[SequenceView]:
        """Return the running sequences that may have tokens in the next step, by rank."""
        lanes, found = self._state.lanes, []
        for one in self._state.running.sequences:
            if one.finish is not None or one.recomputes or one.sits_out or one.waiting_for_kv or one.preempt_pending:
                continue
            if one.num_uncomputed > 0 and not lanes.of(one).settings.background:
                found.append(SequenceView(one))
        return found

    def waiting(self, most: int) -> list[SequenceView]:
        """Return at most so many waiting sequences that may be served next."""
        found: list[SequenceView] = []
        for lane in self._state.lanes.in_turn(background=False):
            found += [SequenceView(one) for one in lane.queue.first(most - len(found))]
            if len(found) >= most:
                break
        return found

    def late(self) -> SequenceView | None:
        """Return the waiting sequence that is served first of those behind all others."""
        heads = [lane.queue.first_late() for lane in self._state.lanes.in_turn(background=False)]
        found = [head for head in heads if head is not None]
        return SequenceView(min(found, key=lambda one: (one.request.arrival, one.number))) if found else None


def move_late(lanes: Lanes, shape: StepShape, running: Iterable[Sequence]) -> None:
    """Move waiting sequences that are late behind the others of their lane, and those that are so no more to their
    turn. running: of those that are late some may be here."""
    waiting = shape.late.difference(one.number for one in running) if shape.late else shape.late
    if waiting or shape.on_time:
        for lane in lanes.in_turn(background=False):
            for sequence in lane.queue.select(waiting):
                lane.queue.move_behind(sequence)
            for sequence in lane.queue.select(shape.on_time):
                lane.queue.push(sequence)
