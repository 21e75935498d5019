"""How many replicas there should be: as many as bring the queue of prompts down to a target in seconds.

Processor use would tell nothing: an engine that has one request computes as busily as one with a hundred. One rule for
Ray (`cli.replicas.autoscaling`), which keeps the window and the delays by itself, and for simulated clusters, which
have `ReplicaTarget` for that. Knows what replicas tell of their queues; starts and ends none.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping

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
