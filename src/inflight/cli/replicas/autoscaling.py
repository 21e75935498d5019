"""How many replicas there should be: as many as bring the queue of prompts down to a target in seconds.

Ray asks (`AutoscalingPolicy`), and replicas say how long their queues are. Processor use would tell nothing: an engine
that has one request computes as busily as one with a hundred.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

QUEUED_SECONDS = "queued_seconds"
TARGET_SECONDS = 1.0  # that a newcomer waits at a replica
IDLE_SHARE = 0.25  # of the target, below which one replica less would do
# Ray's own (10, 30, 30 and 600) are for replicas that are asked how many requests they have.
TELL_SECONDS = 1.0  # between two tellings of a replica
WINDOW_SECONDS = 5.0  # over which what was told is averaged
UP_SECONDS = 3.0  # for which more replicas must be wanted before there are more
DOWN_SECONDS = 30.0  # for which fewer must be: a replica that is gone takes its cache along, and takes time to load


def wanted_replicas(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Ray's form of a policy: how many, and what it wants to be reminded of."""
    queues = list((context.aggregated_metrics or {}).get(QUEUED_SECONDS, {}).values())
    return target_replicas(context.target_num_replicas, queues), {}


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
