"""How long a newcomer would wait at a replica, in seconds, as a router reckons it: by requests under way, how long
answers have been, and what the engine's steps take. That is what replicas are added and taken away by (`autoscaling`).

Knows requests as they come and go. Work of background lanes counts for nothing: it has what others leave.
"""

from __future__ import annotations

from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.request import Request
from inflight.routing.policies.round_robin import RoundRobin
from inflight.routing.routed_request import RoutedRequest
from inflight.routing.router import Router
from inflight.routing.serving_costs import ServingCosts


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
