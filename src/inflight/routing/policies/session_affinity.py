"""A program, or session, stays where it began, and so does its KV cache; new ones, and requests without one, go where
the least work is.

It moves only where its replica is gone, or has more requests than `RATIO` times the mean, at least `SLACK` more
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
    MAX_SESSIONS = 1 << 16
    RATIO, SLACK = 1.5, 4

    def __init__(self) -> None:
        self._homes: OrderedDict[str, str] = OrderedDict()  # session → name of its replica, used longest ago first
        self._least = LeastWork()

    def choose(self, request: RoutedRequest, candidates: Sequence[Candidate]) -> int:
        if not request.session:
            return self._least.choose(request, candidates)
        home = self._homes.get(request.session)
        chosen = next((at for at, one in enumerate(candidates) if one.replica.name == home), None)
        if chosen is None or self._is_overloaded(chosen, candidates):
            chosen = self._least.choose(request, candidates)
        self._homes[request.session] = candidates[chosen].replica.name
        self._homes.move_to_end(request.session)
        if len(self._homes) > self.MAX_SESSIONS:
            self._homes.popitem(last=False)
        return chosen

    def _is_overloaded(self, index: int, candidates: Sequence[Candidate]) -> bool:
        mean = sum(one.replica.requests for one in candidates) / len(candidates)
        return candidates[index].replica.requests > max(mean + self.SLACK, self.RATIO * mean)
