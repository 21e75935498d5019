"""Simulated replicas: one engine on a virtual clock, pools of them behind a router, and pools that scale."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from inflight.config.scheduling import SchedulingSettings
from inflight.core.scheduling.snapshot import Snapshot
from inflight.core.tenants import TenantUsage
from inflight.core.types.events import Event
from inflight.core.types.plan import WaitUntil
from inflight.core.types.request import Request
from inflight.engine.loop import EngineLoop
from inflight.routing.autoscaling import REPORT_SECONDS, ReplicaQueue, ReplicaTarget
from inflight.routing.replica_view import ServingCosts
from inflight.routing.routed_request import RoutedRequest
from inflight.routing.router import Router
from inflight.simulate.disagg import ExchangeSide
from inflight.simulate.executor import ForeseenSteps, SimulatedExecutor
from inflight.simulate.fast_forward import FastForward
from inflight.simulate.transfers import TimedTransfers


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

    def exchange_service(self, elsewhere: TenantUsage) -> TenantUsage:
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


class RoutedPool:
    def __init__(self, replicas: Sequence[Replica], router: Router):
        """router: it knows each by its number."""
        self.replicas = list(replicas)
        self._router = router

    def send(self, request: Request, routed: RoutedRequest) -> Replica:
        """The replica that gets it, which is to be told."""
        return self.replicas[int(self._router.send(routed).name)]

    def first_token(self, request_id: str) -> None:
        self._router.first_token(request_id)

    def ended(self, request_id: str, now: float, output_tokens: int | None = None) -> None:
        """output_tokens: of its answer, where it came to its end."""
        self._router.ended(request_id, output_tokens)


START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Scaling:
    """most: replicas at once; there are at least those that there are in the beginning. start_seconds: from when one is
    wanted until it takes requests."""

    most: int
    start_seconds: float = START_SECONDS


@dataclass(slots=True)
class Lifetime:
    """Seconds since the beginning of the run: when a replica was wanted, took requests, was sent no more, was gone."""

    wanted: float
    serving: float = math.inf
    drained_from: float = math.inf
    gone: float = math.inf

    def seconds(self, end: float) -> float:
        """That it took up until then."""
        return min(self.gone, end) - self.wanted


@dataclass(frozen=True, slots=True)
class ScalingResult:
    """What scaling did until the end of a run. lifetimes: of every replica that there ever was, by number."""

    lifetimes: Sequence[Lifetime]
    end: float

    @property
    def replica_seconds(self) -> float:
        return sum(one.seconds(self.end) for one in self.lifetimes)

    def over_time(self) -> list[tuple[float, int]]:
        """Replicas that take requests, from each of these times on."""
        began = [(one.serving, 1) for one in self.lifetimes if one.serving <= self.end]
        ended = [(one.drained_from, -1) for one in self.lifetimes if one.serving <= one.drained_from <= self.end]
        found: dict[float, int] = {}
        count = 0
        for time, change in sorted(began + ended):
            count += change
            found[time] = count
        return list(found.items())


@dataclass(slots=True)
class _Member:
    """One that serves, or answers what it still has."""

    number: int
    queue: ReplicaQueue
    costs: ServingCosts
    under_way: int = 0


class ScaledPool(RoutedPool):
    def __init__(
        self,
        least: int,
        scaling: Scaling,
        router: Router,
        make: Callable[[int], Replica],
        join: Callable[[int], ServingCosts],
        scheduling: SchedulingSettings,
    ):
        """make: the replica of a number, as new. join: it has joined the router under its number, and costs this."""
        super().__init__((), router)
        self._make, self._join, self._scheduling = make, join, scheduling
        self._start_seconds = scaling.start_seconds
        self._target = ReplicaTarget(least, scaling.most)
        self.lifetimes: list[Lifetime] = []
        self._starting: list[int] = []  # numbers, those that serve first come first
        self._serving: dict[str, _Member] = {}  # by name, the oldest first
        self._draining: dict[str, _Member] = {}
        self._where: dict[str, _Member] = {}  # by request
        self._next_told = REPORT_SECONDS
        for _ in range(least):
            self._serve(self._want(0.0), 0.0)

    @property
    def next_time(self) -> float:
        """When replicas tell of their queues, or one begins to serve."""
        starts = self.lifetimes[self._starting[0]].wanted + self._start_seconds if self._starting else math.inf
        return min(self._next_told, starts)

    def pass_time(self, now: float) -> list[Replica]:
        """What happens at `next_time`; those that serve from now on."""
        new = []
        while self._starting and self.lifetimes[self._starting[0]].wanted + self._start_seconds <= now:
            new.append(self._serve(self._starting.pop(0), now))
        if now >= self._next_told:
            self._next_told += REPORT_SECONDS
            queues = {name: one.queue.seconds(one.costs) for name, one in self._serving.items()}
            self._follow(self._target.update(now, queues), now)
        return new

    def send(self, request: Request, routed: RoutedRequest) -> Replica:
        among = self._serving if self._draining else None
        member = self._serving[self._router.send(routed, among).name]
        member.queue.add(request, routed.num_external_tokens)
        member.under_way += 1
        self._where[request.request_id] = member
        return self.replicas[member.number]

    def first_token(self, request_id: str) -> None:
        super().first_token(request_id)
        self._where[request_id].queue.first_token(request_id)

    def ended(self, request_id: str, now: float, output_tokens: int | None = None) -> None:
        super().ended(request_id, now, output_tokens)
        member = self._where.pop(request_id)
        member.queue.ended(request_id, output_tokens)
        member.under_way -= 1
        if str(member.number) in self._draining:
            self._end_if_idle(member, now)

    # -- more and fewer -----------------------------------------------------------------------------------------

    def _follow(self, target: int, now: float) -> None:
        while len(self._starting) + len(self._serving) < target:
            self._starting.append(self._want(now))
        while len(self._starting) + len(self._serving) > target:
            if self._starting:
                self.lifetimes[self._starting.pop()].gone = now
            else:
                self._drain(now)

    def _want(self, now: float) -> int:
        self.lifetimes.append(Lifetime(now))
        number = len(self.replicas)
        self.replicas.append(self._make(number))
        return number

    def _serve(self, number: int, now: float) -> Replica:
        self.lifetimes[number].serving = now
        self._serving[str(number)] = _Member(number, ReplicaQueue(self._scheduling), self._join(number))
        return self.replicas[number]

    def _drain(self, now: float) -> None:
        """The youngest: it has the least in its cache."""
        name, member = self._serving.popitem()
        self.lifetimes[member.number].drained_from = now
        self._draining[name] = member
        self._end_if_idle(member, now)

    def _end_if_idle(self, member: _Member, now: float) -> None:
        if not member.under_way:
            name = str(member.number)
            del self._draining[name]
            self._router.leave(name)
            self.lifetimes[member.number].gone = now
