"""Where most of the prompt went before, unless that replica has many more requests than the least loaded one.

Routers without a model of costs do this; `prefix_aware` has one.
"""

from __future__ import annotations

from collections.abc import Sequence

from inflight.routing.policies.least_loaded import LeastLoaded
from inflight.routing.policies.policy import Candidate
from inflight.routing.routed_request import RoutedRequest


class PrefixAffinity:
    uses_prefixes = True
    RATIO = 1.5  # times as many requests by which the affine replica may be busier, if that is more than `slack`

    def __init__(self, slack: int) -> None:
        """slack: requests by which the affine replica may be busier."""
        self._slack = slack
        self._least = LeastLoaded()

    def choose(self, request: RoutedRequest, candidates: Sequence[Candidate]) -> int:
        least = self._least.choose(request, candidates)
        longest = max(one.cached for one in candidates)
        if not longest:
            return least
        affine = min(
            (index for index, one in enumerate(candidates) if one.cached == longest),
            key=lambda index: candidates[index].replica.requests,
        )
        fewest = candidates[least].replica.requests
        if candidates[affine].replica.requests > max(fewest + self._slack, self.RATIO * fewest):
            return least
        return affine
