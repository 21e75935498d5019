"""One simulated engine among several: a loop on a virtual clock of its own, and what its router has sent to it.

A step of the loop jumps to the step's end, so that a replica may be ahead of the others; what came of the step is told
to the world when its time has come (`cluster`), and a request that comes meanwhile waits for the step, as in life.
"""

from __future__ import annotations

from dataclasses import dataclass

from inflight.core.events import Event
from inflight.core.features import Features
from inflight.core.plan import WaitUntil
from inflight.core.request import Request
from inflight.core.scheduler import Scheduler
from inflight.core.snapshot import Snapshot
from inflight.engine.loop import EngineLoop
from inflight.simulate.executor import TOKEN, SimulatedExecutor
from inflight.simulate.routers import Load


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """What a replica did. busy: seconds of steps. last: its counts at the end."""

    steps: int
    busy: float
    last: Snapshot


class Replica:
    def __init__(self, loop: EngineLoop, executor: SimulatedExecutor, skips: Scheduler | None = None):
        """skips: the loop's scheduler, where stretches of decodes may be taken at once; None: every plan is made."""
        self.load = Load()  # as its router knows it
        self._skips = skips
        self._loop = loop
        self._executor = executor
        self._wake: float | None = None  # it has work, and may not start before

    @property
    def now(self) -> float:
        return self._loop.clock.now()

    @property
    def ready(self) -> float | None:
        """When its next step begins; None while it has nothing to do."""
        if self._loop.idle:
            return None
        return self.now if self._wake is None else self._wake

    def add(self, request: Request, at: float) -> None:
        """Raises RequestRefused."""
        self._loop.clock.wait_until(at)
        self._wake = None
        self._loop.add(request)

    def abort(self, request_id: str) -> None:
        self._loop.abort(request_id)

    def step(self) -> list[Event]:
        """Events of the next step, whose time is `now` afterwards; none where it turns out that it must wait."""
        if self._wake is not None:
            self._loop.clock.wait_until(self._wake)
            self._wake = None
        result = self._loop.advance()
        if isinstance(result, WaitUntil):
            self._wake = result.time
            return []
        return result

    def stretch(self, until: float) -> tuple[list[str], list[float]] | None:
        """Steps that are all alike and begin before `until`, taken at once: the requests that had a token in each, and
        when each was done. None where the next step is not such a one."""
        if self._skips is None or self._wake is not None or until <= self.now:
            return None
        found = self._skips.stretch(self.now)
        if found is None:
            return None
        clock, held, times = self._loop.clock, found.features(), [self.now]
        while len(times) <= found.most and times[-1] < until:
            clock.passed(self._executor.seconds(held))
            times.append(clock.now())
            held = Features(held.tokens, held.rows, held.samples, held.decode_context + held.rows, 0.0)
        self._skips.skip(found, TOKEN, times)
        return found.request_ids, times[1:]

    def close(self) -> None:
        """Its record is whole; raises what the record's file failed with."""
        self._loop.close()
        if self._loop.watcher_fault is not None:
            raise self._loop.watcher_fault

    @property
    def extrapolated(self) -> dict[str, int]:
        return self._executor.extrapolated

    def figures(self) -> ReplicaFigures:
        return ReplicaFigures(self._executor.steps, self._executor.busy, self._loop.snapshot())
