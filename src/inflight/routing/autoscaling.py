"""How many replicas there should be: as many as bring the queue of prompts down to a target in seconds.

A replica's queue is how long a new request would wait there, by outstanding requests, mean answer lengths and step
costs. Processor use would say nothing: an engine with one request computes as busily as one with a hundred. One rule
for Ray (`cli.replicas.autoscaling`), which has its own window and delays, and for simulated clusters (`ReplicaTarget`).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping

from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.request import Request
from inflight.routing.policies.round_robin import RoundRobin
from inflight.routing.replica_view import ServingCosts
from inflight.routing.routed_request import RoutedRequest
from inflight.routing.router import Router


class ReplicaQueue:
    def __init__(self, scheduling: SchedulingSettings):
        self._background = background_lanes(scheduling)
        self._router = Router(RoundRobin())  # of one replica: what it knows of its requests is what is asked here
        self._here = self._router.join("here")

    def came(self, request: Request, handed_tokens: int = 0) -> None:
        """handed_tokens: of its prompt, which another engine computes."""
        if request.lane not in self._background:
            self._router.sent(RoutedRequest.of(request), self._here, handed_tokens)

    def first_token(self, request_id: str) -> None:
        """It has one, or will have none; said again it changes nothing."""
        self._router.first_token(request_id)

    def ended(self, request_id: str, output_tokens: int | None) -> None:
        """output_tokens: of its answer, where it came to its end."""
        self._router.ended(request_id, output_tokens)

    def seconds(self, costs: ServingCosts | None) -> float:
        """For prompts that wait or are being computed, and for rows that are all taken. costs: None: not known yet."""
        if costs is None:
            return 0.0
        self._here.costs = costs
        return self._here.queued_seconds("", 0, self._router.expected_tokens)


def background_lanes(scheduling: SchedulingSettings) -> frozenset[str]:
    lanes = scheduling.lanes
    return frozenset(name for name in ("batch", *lanes) if lanes.get(name, {}).get("background", name == "batch"))


TARGET_SECONDS = 1.0  # that a newcomer waits at a replica
IDLE_SHARE = 0.25  # of the target, below which one replica less would do
# Ray's own times (10, 30, 30 and 600) are for replicas that are asked how many requests they have.
TELL_SECONDS = 1.0  # between two tellings of a replica
WINDOW_SECONDS = 5.0  # over which what was told is averaged
UP_SECONDS = 3.0  # for which more replicas must be wanted before there are more
DOWN_SECONDS = 30.0  # for which fewer must be: a replica that is gone takes its cache along, and takes time to load


def target_replicas(target: int, queues: list[float]) -> int:
    """target: what there are to be now; some of them may still be loading. queues: seconds of each that tells. Grows
    with what there is too much; shrinks by one where all have little."""
    if not queues:
        return target
    needed = math.ceil(sum(queues) / TARGET_SECONDS)
    if needed > target:
        return needed
    if target > 1 and sum(queues) < IDLE_SHARE * TARGET_SECONDS * (target - 1):
        return target - 1
    return target


class ReplicaTarget:
    """What there are to be, over time, by what replicas tell every TELL_SECONDS."""

    def __init__(self, least: int, most: int):
        self.replicas = least
        self._least, self._most = least, most
        self._told: deque[tuple[float, Mapping[str, float]]] = deque()
        self._since: float | None = None  # more are wanted, or fewer, than there are to be
        self._grows = False

    def tell(self, now: float, queues: Mapping[str, float]) -> int:
        """queues: seconds of each replica, by name. Returns how many there are to be now."""
        self._told.append((now, queues))
        while self._told[0][0] <= now - WINDOW_SECONDS:
            self._told.popleft()
        means = [statistics.fmean(one[name] for _, one in self._told if name in one) for name in queues]
        wanted = min(self._most, max(self._least, target_replicas(self.replicas, means)))
        grows = wanted > self.replicas
        if wanted == self.replicas:
            self._since = None
        elif self._since is None or grows is not self._grows:
            self._since, self._grows = now, grows
        if self._since is not None and now - self._since >= (UP_SECONDS if grows else DOWN_SECONDS):
            self.replicas, self._since = wanted, None
        return self.replicas
