"""A session stays where it began; those without one, and new ones, go where least work is.

It moves only where its replica is gone, or has more requests than `RATIO` times the mean, `SLACK` more at least
(consistent hashing with bounded loads, Mirrokni 2016, has the same bound).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from inflight.routing.policies.least_work import LeastWork
from inflight.routing.policies.policy import Candidate
from inflight.routing.routed_request import RoutedRequest


class SessionAffinity:
    uses_prefixes = False
    MOST = 1 << 16  # sessions remembered
    RATIO, SLACK = 1.5, 4

    def __init__(self) -> None:
        self._homes: OrderedDict[str, str] = OrderedDict()  # session → name of its replica, used longest ago first
        self._least = LeastWork()

    def choose(self, request: RoutedRequest, candidates: Sequence[Candidate]) -> int:
        if not request.session:
            return self._least.choose(request, candidates)
        home = self._homes.get(request.session)
        place = next((at for at, one in enumerate(candidates) if one.replica.name == home), None)
        if place is None or self._is_overloaded(place, candidates):
            place = self._least.choose(request, candidates)
        self._homes[request.session] = candidates[place].replica.name
        self._homes.move_to_end(request.session)
        if len(self._homes) > self.MOST:
            self._homes.popitem(last=False)
        return place

    def _is_overloaded(self, place: int, candidates: Sequence[Candidate]) -> bool:
        mean = sum(one.replica.requests for one in candidates) / len(candidates)
        return candidates[place].replica.requests > max(mean + self.SLACK, self.RATIO * mean)
