"""Fewest requests in flight; of equal ones, fewest prompt tokens to compute (join the shortest queue)."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.routing.policies.policy import Candidate
from inflight.routing.replica_view import ReplicaView
from inflight.routing.routed_request import RoutedRequest


class LeastLoaded:
    uses_prefixes = False

    def choose(self, request: RoutedRequest, candidates: Sequence[Candidate]) -> int:
        return min(range(len(candidates)), key=lambda index: load_of(candidates[index].replica))


def load_of(replica: ReplicaView) -> tuple[int, int]:
    return replica.requests, replica.prompt_tokens
