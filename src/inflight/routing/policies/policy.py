"""What a routing policy is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from inflight.routing.replica_view import ReplicaView
from inflight.routing.routed_request import RoutedRequest


class Candidate(NamedTuple):
    """cached: leading tokens of the prompt that the replica is taken to hold, where the policy asks, or is handed."""

    replica: ReplicaView
    cached: int


class RoutingPolicy(Protocol):
    @property
    def uses_prefixes(self) -> bool:
        """Whether it asks what is cached where."""

    def choose(self, request: RoutedRequest, candidates: Sequence[Candidate]) -> int:
        """Place of the one that gets the request, among one at least."""
