"""Simulated replicas: one engine on a virtual clock, pools of them behind a router, and pools that scale.

A step jumps to its end, so that a replica may be ahead of the others; its events are delivered when their time has come
(`cluster`), and a request that comes meanwhile waits for the step, as in a real engine. Steps that are known beforehand
are taken together, as late as possible (`fast_forward`).
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from inflight.config.scheduling import SchedulingSettings
from inflight.core.scheduling.stats import SchedulerStats
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
    """Counts of a replica at the end of a run. busy: seconds of steps. last: the scheduler's. extrapolated: sentence of
    steps outside of the step model's ranges → number of steps."""

    steps: int
    busy: float
    last: SchedulerStats
    extrapolated: Mapping[str, int]


class Replica:
    """A simulated engine: a loop on a virtual clock of its own."""

    def __init__(
        self,
        loop: EngineLoop,
        executor: SimulatedExecutor,
        fast_forward: FastForward | None = None,
        peers: ExchangeSide | None = None,
    ):
        """Make a replica.

        Args:
            fast_forward: the loop's scheduler, where it leaves foreseen decodes out of plans.
            peers: its KV transfers with other replicas.
        """
        self.peers = peers
        self._fast_forward = fast_forward
        self._ends = array("d")  # of all steps, where some tokens come without events
        self._loop, self._clock = loop, loop.clock
        self._executor = executor
        self._wake: float | None = None  # the time before which it may not start its work
        self._foreseen: ForeseenSteps | None = None  # its next steps, unless a request comes

    @property
    def now(self) -> float:
        return self._clock.now()

    def foresee(self, until: float = math.inf) -> float | None:
        """Foresee steps that are all alike, and return when more happens (`ForeseenSteps.due`), if no request comes
        before; None while there is nothing to do. until: when the next request comes, if that is known."""
        if self._foreseen is not None:
            return self._foreseen.due
        if self._loop.idle:
            return None
        if self._wake is not None:
            return self._wake
        if self._executor.awaits_transfer and self._executor.timed is not None:
            end = self._executor.timed.next_end
            return None if math.isinf(end) else max(end, self.now)
        if self._fast_forward is not None and (coming := self._fast_forward.alike_steps()) is not None:
            self._foreseen = self._executor.foresee(coming, self.now, until)
        return self.now if self._foreseen is None else self._foreseen.due

    def add(self, request: Request, at: float) -> None:
        """Add a request; steps that began before it came are taken without it. Raises RequestRefused."""
        if self._foreseen is not None:
            events = self._take_foreseen(bisect_left(self._foreseen.times, at, hi=len(self._foreseen.seconds)))
            assert not events, "a step at whose commit sequences end is taken when it begins"
        self._clock.wait_until(at)
        self._wake = None
        self._executor.awaits_transfer = False
        self._loop.add(request)

    def sync_tenant_usage(self, elsewhere: TenantUsage) -> TenantUsage:
        return self._loop.sync_tenant_usage(elsewhere)

    def step(self, until: float = math.inf) -> list[Event]:
        """Take the next step and return its events, whose time is `now` afterwards; none where more is foreseen, the
        engine must wait, and of a step that was suspended. until: when the next request comes."""
        if self._foreseen is not None:
            if self._foreseen.complete:
                return self._take_foreseen(len(self._foreseen.seconds))
            self._executor.foresee_more(self._foreseen, until)
            return []
        if self._wake is not None:
            self._clock.wait_until(self._wake)
            self._wake = None
        if self._executor.timed is not None:
            self._take_transferred(self._executor.timed)
        result = self._loop.advance(until=until)
        if isinstance(result, WaitUntil):
            self._wake = result.time
            return []
        if self._executor.awaits_transfer:  # nothing was computed
            return []
        if self._fast_forward is not None:
            self._ends.append(self.now)
        return result

    def _take_transferred(self, timed: TimedTransfers) -> None:
        """Take the transfers that have ended since the last step; wait for the next where nothing else can be done."""
        if self._executor.awaits_transfer:
            self._clock.wait_until(timed.next_end)
            self._executor.awaits_transfer = False
        if timed.next_end <= self.now:
            self._loop.take_transferred()

    def _take_foreseen(self, steps: int) -> list[Event]:
        """Take the first so many foreseen steps, and return the events of the last one."""
        foreseen, self._foreseen = self._foreseen, None
        assert foreseen is not None and self._fast_forward is not None
        self._executor.compute(foreseen, steps)
        if not steps:
            return []
        times = foreseen.times[: steps + 1]
        self._clock.wait_until(times[-1])
        self._ends.extend(times[1:])
        return self._fast_forward.skip(foreseen.alike, times)

    def drain_tokens(self) -> Iterator[tuple[str, Sequence[float]]]:
        """Yield (request id, times) of tokens that came without events, of requests whose next event is due."""
        if self._fast_forward is not None:
            for one in self._fast_forward.drain_tokens():
                yield one.request_id, self._ends[one.first : one.last]

    def close(self) -> None:
        """Take what transfers still make it do, and close its record. Raises what the record's file failed with."""
        while self._executor.timed is not None and self.foresee() is not None:
            self.step()
        self._loop.close()
        if self._loop.observer_error is not None:
            raise self._loop.observer_error

    def figures(self) -> ReplicaFigures:
        executor = self._executor
        return ReplicaFigures(executor.steps, executor.busy, self._loop.stats(), executor.extrapolated)


class RoutedPool:
    """Replicas behind a router; their number does not change."""

    def __init__(self, replicas: Sequence[Replica], router: Router):
        """router: with each replica by its number."""
        self.replicas = list(replicas)
        self._router = router

    @property
    def serving(self) -> int:
        """The number of replicas that get requests."""
        return len(self.replicas)

    def send(self, request: Request, routed: RoutedRequest) -> Replica:
        """Let the router choose a replica and count the request there; return it, for its `add`."""
        return self.replicas[int(self._router.send(routed).name)]

    def first_token(self, request_id: str) -> None:
        self._router.first_token(request_id)

    def ended(self, request_id: str, now: float, output_tokens: int | None = None) -> None:
        """Remove a request. output_tokens: of its answer, where it completed."""
        self._router.ended(request_id, output_tokens)


class SingleReplica(RoutedPool):
    """A pool of one replica, which gets every request: its router is not asked, and counts nothing."""

    def send(self, request: Request, routed: RoutedRequest) -> Replica:
        return self.replicas[0]

    def first_token(self, request_id: str) -> None: ...

    def ended(self, request_id: str, now: float, output_tokens: int | None = None) -> None: ...


START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Scaling:
    """Limits of a pool that scales. max_replicas: at once; the minimum is the number at the beginning. start_seconds:
    from the decision for a replica until it takes requests."""

    max_replicas: int
    start_seconds: float = START_SECONDS


@dataclass(slots=True)
class Lifetime:
    """Seconds since the beginning of the run at which a replica was wanted, took requests, drained, and was gone."""

    wanted: float
    serving: float = math.inf
    drained_from: float = math.inf
    gone: float = math.inf

    def seconds(self, end: float) -> float:
        """Return the seconds that it took up until then."""
        return min(self.gone, end) - self.wanted


@dataclass(frozen=True, slots=True)
class ScalingResult:
    """The replicas of a pool over a run. lifetimes: of every replica, by number."""

    lifetimes: Sequence[Lifetime]
    end: float

    @property
    def replica_seconds(self) -> float:
        return sum(one.seconds(self.end) for one in self.lifetimes)

    def over_time(self) -> list[tuple[float, int]]:
        """Return (time, replicas that take requests from then on)."""
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
    """A replica that serves or drains."""

    number: int
    queue: ReplicaQueue
    costs: ServingCosts
    in_flight: int = 0


class ScaledPool(RoutedPool):
    """A pool whose size follows its queues, by the rule of real replicas (`routing.autoscaling`).

    Every second each replica that serves reports its queue. A new replica takes time to start, with an empty cache; one
    that is not wanted any more gets no requests, and is gone when its last one is answered: first those that still
    start, then the youngest, whose cache is the emptiest.
    """

    def __init__(
        self,
        min_replicas: int,
        scaling: Scaling,
        router: Router,
        make: Callable[[int], Replica],
        join: Callable[[int], ServingCosts],
        scheduling: SchedulingSettings,
    ):
        """make: makes the replica of a number. join: adds it to the router, and returns its costs."""
        super().__init__((), router)
        self._make, self._join, self._scheduling = make, join, scheduling
        self._start_seconds = scaling.start_seconds
        self._target = ReplicaTarget(min_replicas, scaling.max_replicas)
        self.lifetimes: list[Lifetime] = []
        self._starting: list[int] = []  # numbers, in the order in which they will serve
        self._serving: dict[str, _Member] = {}  # by name, the oldest first
        self._draining: dict[str, _Member] = {}
        self._where: dict[str, _Member] = {}  # by request
        self._next_report = REPORT_SECONDS
        for _ in range(min_replicas):
            self._serve(self._want(0.0), 0.0)

    @property
    def serving(self) -> int:
        return len(self._serving)

    @property
    def next_time(self) -> float:
        """When replicas report their queues, or one begins to serve."""
        starts = self.lifetimes[self._starting[0]].wanted + self._start_seconds if self._starting else math.inf
        return min(self._next_report, starts)

    def pass_time(self, now: float) -> list[Replica]:
        """Do what happens at `next_time`, and return the replicas that serve from now on."""
        new = []
        while self._starting and self.lifetimes[self._starting[0]].wanted + self._start_seconds <= now:
            new.append(self._serve(self._starting.pop(0), now))
        if now >= self._next_report:
            self._next_report += REPORT_SECONDS
            queues = {name: one.queue.seconds(one.costs) for name, one in self._serving.items()}
            self._scale_to(self._target.update(now, queues), now)
        return new

    def send(self, request: Request, routed: RoutedRequest) -> Replica:
        among = self._serving if self._draining else None
        member = self._serving[self._router.send(routed, among).name]
        member.queue.add(request, routed.num_external_tokens)
        member.in_flight += 1
        self._where[request.request_id] = member
        return self.replicas[member.number]

    def first_token(self, request_id: str) -> None:
        super().first_token(request_id)
        self._where[request_id].queue.first_token(request_id)

    def ended(self, request_id: str, now: float, output_tokens: int | None = None) -> None:
        super().ended(request_id, now, output_tokens)
        member = self._where.pop(request_id)
        member.queue.ended(request_id, output_tokens)
        member.in_flight -= 1
        if str(member.number) in self._draining:
            self._end_if_idle(member, now)

    # -- scaling ------------------------------------------------------------------------------------------------

    def _scale_to(self, target: int, now: float) -> None:
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
        name, member = self._serving.popitem()
        self.lifetimes[member.number].drained_from = now
        self._draining[name] = member
        self._end_if_idle(member, now)

    def _end_if_idle(self, member: _Member, now: float) -> None:
        if not member.in_flight:
            name = str(member.number)
            del self._draining[name]
            self._router.leave(name)
            self.lifetimes[member.number].gone = now
