"""The queue of one replica, as it tells Ray of it: `routing.replica_queue`'s."""

from inflight.routing.replica_queue import ReplicaQueue, background_lanes

__all__ = ["ReplicaQueue", "background_lanes"]
