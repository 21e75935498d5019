"""Least work in seconds by the replica's own costs: prompts that wait, and answers in flight. Unlike a count of
requests, it distinguishes a long prompt from a short one, and a slow replica from a fast one."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.routing.policies.policy import Candidate
from inflight.routing.routed_request import RoutedRequest


class LeastWork:
    uses_prefixes = False

    def choose(self, request: RoutedRequest, candidates: Sequence[Candidate]) -> int:
        def work(index: int) -> tuple[float, int]:
            replica = candidates[index].replica
            return replica.work_seconds(request.expected_tokens), replica.requests

        return min(range(len(candidates)), key=work)
