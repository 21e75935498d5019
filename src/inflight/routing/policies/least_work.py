"""Least work in seconds by the replica's own costs: prompts that wait, and answers under way. Unlike counting requests,
it tells a long prompt from a short one, and a slow replica from a fast one."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.routing.policies.policy import Candidate
from inflight.routing.routed_request import RoutedRequest


class LeastWork:
    uses_prefixes = False

    def choose(self, request: RoutedRequest, candidates: Sequence[Candidate]) -> int:
        def work(place: int) -> tuple[float, int]:
            replica = candidates[place].replica
            return replica.work_seconds(request.expected_tokens), replica.requests

        return min(range(len(candidates)), key=work)
