"""How many replicas there should be: as many as bring the queue of prompts down to a target in seconds.

A replica's queue is how long a new request would wait there, by outstanding requests, mean answer lengths and step
costs. Processor use would say nothing: an engine with one request computes as busily as one with a hundred. One rule
for Ray (`ray.replica_load`), which has its own window and delays, and for simulated clusters (`ReplicaTarget`).
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
    """The queue of one replica. Work of background lanes does not count: it uses what others leave."""

    def __init__(self, scheduling: SchedulingSettings):
        self._background = background_lanes(scheduling)
        self._router = Router(RoundRobin())  # of one replica, for its account of requests
        self._here = self._router.join("here")

    def add(self, request: Request, num_external_tokens: int = 0) -> None:
        """Add a request. num_external_tokens: of its prompt, which another engine computes."""
        if request.lane not in self._background:
            self._router.sent(RoutedRequest.of(request), self._here, num_external_tokens)

    def first_token(self, request_id: str) -> None:
        """Note that a request has its first token, or will have none; idempotent."""
        self._router.first_token(request_id)

    def ended(self, request_id: str, output_tokens: int | None) -> None:
        """Remove a request. output_tokens: of its answer, where it completed."""
        self._router.ended(request_id, output_tokens)

    def seconds(self, costs: ServingCosts | None) -> float:
        """Return how long a new request would wait for prompts ahead and for a free request slot; 0 while costs are not
        known."""
        if costs is None:
            return 0.0
        self._here.costs = costs
        return self._here.queued_seconds("", 0, self._router.expected_tokens)


def background_lanes(scheduling: SchedulingSettings) -> frozenset[str]:
    lanes = scheduling.lanes
    return frozenset(name for name in ("batch", *lanes) if lanes.get(name, {}).get("background", name == "batch"))


TARGET_SECONDS = 1.0  # that a new request waits at a replica
IDLE_SHARE = 0.25  # of the target, below which one replica less would do
# Ray's own times (10, 30, 30 and 600) are for replicas that are asked how many requests they have.
REPORT_SECONDS = 1.0  # between two reports of a replica
WINDOW_SECONDS = 5.0  # over which reports are averaged
UP_SECONDS = 3.0  # for which more replicas must be wanted before there are more
DOWN_SECONDS = 30.0  # for which fewer must be: a replica that is gone takes its cache along, and takes time to load


def target_replicas(target: int, queues: list[float]) -> int:
    """Return the number of replicas that these queues want: as many more as they need, or one less where all are short.

    Args:
        target: the number now; some of them may still be loading.
        queues: seconds of each replica that reports.
    """
    if not queues:
        return target
    needed = math.ceil(sum(queues) / TARGET_SECONDS)
    if needed > target:
        return needed
    if target > 1 and sum(queues) < IDLE_SHARE * TARGET_SECONDS * (target - 1):
        return target - 1
    return target


class ReplicaTarget:
    """The target number of replicas over time, by what replicas report every REPORT_SECONDS."""

    def __init__(self, min_replicas: int, max_replicas: int):
        self.replicas = min_replicas
        self._min, self._max = min_replicas, max_replicas
        self._reports: deque[tuple[float, Mapping[str, float]]] = deque()
        self._since: float | None = None  # more are wanted, or fewer, than there are to be
        self._grows = False

    def update(self, now: float, queues: Mapping[str, float]) -> int:
        """Take a report of the queues, in seconds by replica, and return the target number of replicas."""
        self._reports.append((now, queues))
        while self._reports[0][0] <= now - WINDOW_SECONDS:
            self._reports.popleft()
        means = [statistics.fmean(one[name] for _, one in self._reports if name in one) for name in queues]
        wanted = min(self._max, max(self._min, target_replicas(self.replicas, means)))
        grows = wanted > self.replicas
        if wanted == self.replicas:
            self._since = None
        elif self._since is None or grows is not self._grows:
            self._since, self._grows = now, grows
        if self._since is not None and now - self._since >= (UP_SECONDS if grows else DOWN_SECONDS):
            self.replicas, self._since = wanted, None
        return self.replicas
