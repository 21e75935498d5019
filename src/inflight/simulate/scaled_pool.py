"""Simulated replicas of which there are as many as their queues make: by the rule of real ones (`routing.autoscaling`).

Every second each replica that serves tells how long a newcomer would wait. One that is wanted takes time to start, with
an empty cache; one that is not is sent nothing more, and is gone when what it has is answered. Of those that may go the
ones that still start go first, then the youngest. What a replica takes up it takes up from when it was wanted until it
is gone. Knows replicas, their router and queues; not what else happens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.request import Request
from inflight.routing.autoscaling import TELL_SECONDS, ReplicaTarget
from inflight.routing.replica_queue import ReplicaQueue
from inflight.routing.routed_request import RoutedRequest
from inflight.routing.router import Router
from inflight.routing.serving_costs import ServingCosts
from inflight.simulate.replica import Replica
from inflight.simulate.routed_pool import RoutedPool

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
class Scaled:
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
        self._next_told = TELL_SECONDS
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
            self._next_told += TELL_SECONDS
            queues = {name: one.queue.seconds(one.costs) for name, one in self._serving.items()}
            self._follow(self._target.tell(now, queues), now)
        return new

    def send(self, request: Request, routed: RoutedRequest) -> Replica:
        among = self._serving if self._draining else None
        member = self._serving[self._router.send(routed, among).name]
        member.queue.came(request, routed.handed_tokens)
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
