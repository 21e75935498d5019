"""The less loaded of two drawn at random (Mitzenmacher 2001), nearly as good as the least loaded of all."""

from __future__ import annotations

import random
from collections.abc import Sequence

from inflight.routing.policies.least_loaded import load_of
from inflight.routing.policies.policy import Candidate
from inflight.routing.routed_request import RoutedRequest


class PowerOfTwo:
    uses_prefixes = False

    def __init__(self, seed: int):
        self._random = random.Random(seed)

    def choose(self, request: RoutedRequest, candidates: Sequence[Candidate]) -> int:
        drawn = self._random.sample(range(len(candidates)), min(2, len(candidates)))
        return min(drawn, key=lambda index: load_of(candidates[index].replica))
