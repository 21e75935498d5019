"""One simulated engine among several: a loop on a virtual clock of its own, and what its router has sent to it.

A step of the loop jumps to the step's end, so that a replica may be ahead of the others; what came of the step is told
to the world when its time has come (`cluster`), and a request that comes meanwhile waits for the step, as in life.
Steps of which is known beforehand what comes of them are not taken before they must be: where only their times are
wanted, and a request that comes among them, nobody looks at the replica between two of its ends (`fast_forward`).
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inflight.core.scheduling.snapshot import Snapshot
from inflight.core.tenants.service import Service
from inflight.core.types.events import Event
from inflight.core.types.plan import WaitUntil
from inflight.core.types.request import Request
from inflight.engine.loop import EngineLoop
from inflight.simulate.exchange import ExchangeSide
from inflight.simulate.executor import ForeseenSteps, SimulatedExecutor
from inflight.simulate.fast_forward import FastForward
from inflight.simulate.timed_transfers import TimedTransfers


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """What a replica did. busy: seconds of steps. last: its counts at the end."""

    steps: int
    busy: float
    last: Snapshot


class Replica:
    def __init__(
        self,
        loop: EngineLoop,
        executor: SimulatedExecutor,
        skips: FastForward | None = None,
        peers: ExchangeSide | None = None,
    ):
        """skips: the loop's scheduler, where it leaves out what is foreseen; None: every plan is whole. peers: what it
        exchanges with others."""
        self.peers = peers
        self._skips = skips
        self._ends = array("d")  # of all steps so far, where some tokens come without events
        self._loop = loop
        self._executor = executor
        self._wake: float | None = None  # it has work, and may not start before
        self._foreseen: ForeseenSteps | None = None  # its next steps, unless something comes

    @property
    def now(self) -> float:
        return self._loop.clock.now()

    @property
    def ready(self) -> float | None:
        """When something may happen here that is not foreseen, if nothing comes before: its next step begins, behind
        those that are all alike. None while it has nothing to do."""
        if self._loop.idle:
            return None
        if self._wake is not None:
            return self._wake
        if self._executor.awaits_transfer and self._executor.timed is not None:
            end = self._executor.timed.next_end
            return None if math.isinf(end) else max(end, self.now)
        if self._foreseen is None and self._skips is not None and (coming := self._skips.steady_decodes()) is not None:
            self._foreseen = self._executor.foresee(coming, self.now)
        return self.now if self._foreseen is None else self._foreseen.times[-1]

    def add(self, request: Request, at: float) -> None:
        """Raises RequestRefused. Steps that began before it came were taken without it."""
        if self._foreseen is not None:
            self._take_foreseen(bisect_left(self._foreseen.times, at, hi=len(self._foreseen.seconds)))
        self._loop.clock.wait_until(at)
        self._wake = None
        self._executor.awaits_transfer = False
        self._loop.add(request)

    def exchange_service(self, elsewhere: Service) -> Service:
        return self._loop.exchange_service(elsewhere)

    def step(self) -> list[Event]:
        """Events of the next step, whose time is `now` afterwards; none of those that are foreseen, and where it turns
        out that it must wait."""
        if self._foreseen is not None:
            self._take_foreseen(len(self._foreseen.seconds))
            return []
        if self._wake is not None:
            self._loop.clock.wait_until(self._wake)
            self._wake = None
        if self._executor.timed is not None:
            self._take_transferred(self._executor.timed)
        result = self._loop.advance()
        if isinstance(result, WaitUntil):
            self._wake = result.time
            return []
        if self._executor.awaits_transfer:  # nothing was computed
            return []
        if self._skips is not None:
            self._ends.append(self.now)
        return result

    def _take_transferred(self, timed: TimedTransfers) -> None:
        """What has ended since the last step; where nothing else can be done, the next that ends is waited for."""
        if self._executor.awaits_transfer:
            self._loop.clock.wait_until(timed.next_end)
            self._executor.awaits_transfer = False
        if timed.next_end <= self.now:
            self._loop.take_transferred()

    def _take_foreseen(self, steps: int) -> None:
        """The first so many of them."""
        foreseen, self._foreseen = self._foreseen, None
        assert foreseen is not None and self._skips is not None
        self._executor.compute(foreseen, steps)
        if steps:
            times = foreseen.times[: steps + 1]
            self._loop.clock.wait_until(times[-1])
            self._skips.fast_forward(times)
            self._ends.extend(times[1:])

    def tokens(self) -> Iterator[tuple[str, Sequence[float]]]:
        """Those that came without events, of requests of which the next event is due: (request id, times)."""
        if self._skips is not None:
            for one in self._skips.drain_tokens():
                yield one.request_id, self._ends[one.first : one.last]

    def close(self) -> None:
        """Its record is whole, and what was to be kept of it is; raises what the record's file failed with."""
        while self._executor.timed is not None and self.ready is not None:
            self.step()
        self._loop.close()
        if self._loop.watcher_fault is not None:
            raise self._loop.watcher_fault

    @property
    def extrapolated(self) -> dict[str, int]:
        return self._executor.extrapolated

    def figures(self) -> ReplicaFigures:
        return ReplicaFigures(self._executor.steps, self._executor.busy, self._loop.snapshot())
