"""Where most of the prompt went before, unless that replica has many more requests than the least loaded one.

As routers do that know nothing of costs; `prefix_aware` is the one that does.
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
        place = min(
            (place for place, one in enumerate(candidates) if one.cached == longest),
            key=lambda place: candidates[place].replica.requests,
        )
        fewest = candidates[least].replica.requests
        if candidates[place].replica.requests > max(fewest + self._slack, self.RATIO * fewest):
            return least
        return place
