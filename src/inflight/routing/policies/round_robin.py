"""Round robin: one replica after the other."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.routing.policies.policy import Candidate
from inflight.routing.routed_request import RoutedRequest


class RoundRobin:
    uses_prefixes = False

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: RoutedRequest, candidates: Sequence[Candidate]) -> int:
        chosen, self._next = self._next % len(candidates), self._next + 1
        return chosen
