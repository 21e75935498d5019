"""The protocol of routing policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from inflight.routing.replica_view import ReplicaView
from inflight.routing.routed_request import RoutedRequest


class Candidate(NamedTuple):
    """A replica for a request. cached: leading tokens of the prompt that it is assumed to have, where the policy uses
    prefixes, or that another engine computes."""

    replica: ReplicaView
    cached: int


class RoutingPolicy(Protocol):
    """Chooses the replica of a request."""

    @property
    def uses_prefixes(self) -> bool:
        """Whether it uses what is cached where."""

    def choose(self, request: RoutedRequest, candidates: Sequence[Candidate]) -> int:
        """Return the index of the candidate that gets the request; there is at least one."""
