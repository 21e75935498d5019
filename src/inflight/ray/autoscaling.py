"""Scaling under Ray: it asks how many replicas there should be, and they say how long their queues are.

The rule is `routing.autoscaling`'s; Ray averages what is told, and waits before it follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inflight.routing.autoscaling import target_replicas

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

QUEUED_SECONDS = "queued_seconds"


def wanted_replicas(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Ray's form of a policy: how many, and what it wants to be reminded of."""
    queues = list((context.aggregated_metrics or {}).get(QUEUED_SECONDS, {}).values())
    return target_replicas(context.target_num_replicas, queues), {}
