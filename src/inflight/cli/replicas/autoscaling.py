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
TARGET_SECONDS = 1.0  # of prompts in a replica's queue
IDLE_SHARE = 0.25  # of the target, below which one replica less would do


def wanted_replicas(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Ray's form of a policy: how many, and what it wants to be reminded of."""
    queues = list((context.aggregated_metrics or {}).get(QUEUED_SECONDS, {}).values())
    return target_replicas(context.current_num_replicas, queues), {}


def target_replicas(running: int, queues: list[float]) -> int:
    """queues: seconds of each replica. Grows with what there is too much; shrinks by one where all have little."""
    if not queues:
        return running
    needed = math.ceil(sum(queues) / TARGET_SECONDS)
    if needed > running:
        return needed
    if running > 1 and sum(queues) < IDLE_SHARE * TARGET_SECONDS * (running - 1):
        return running - 1
    return running
