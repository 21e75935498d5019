"""The prefix router that Ray Serve publishes (PrefixCacheAffinityRouter), as its documentation describes it, to
compare.

While the longest and the shortest queue differ by no more than a threshold: to a replica that has been sent the longest
beginning of the prompt, if that is a tenth of it; else to one that has been sent least in all. Otherwise the less
loaded of two drawn ones. Of several that are as good, the one with fewest requests. It never forgets what it sent.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from inflight.routing.policies.policy import Candidate
from inflight.routing.routed_request import RoutedRequest

_BLOCK = 16  # tokens; Ray's counts characters
_MIN_MATCH = 0.1


class RayPrefix:
    uses_prefixes = False  # what it remembers it keeps itself

    def __init__(self, seed: int, threshold: float):
        self._random, self._threshold = random.Random(seed), threshold
        self._seen: dict[str, set[bytes]] = {}  # replica → all that it was sent

    def choose(self, request: RoutedRequest, candidates: Sequence[Candidate]) -> int:
        queues = [one.replica.requests for one in candidates]
        blocks = request.block_hashes(_BLOCK)
        seen = [self._seen.setdefault(one.replica.name, set()) for one in candidates]
        if max(queues) - min(queues) > self._threshold:
            places = self._random.sample(range(len(candidates)), min(2, len(candidates)))
        else:
            matches = [_leading(blocks, known) for known in seen]
            longest = max(matches)
            if longest * _BLOCK >= _MIN_MATCH * len(request.prompt):
                places = [place for place, match in enumerate(matches) if match == longest]
            else:
                least = min(map(len, seen))
                places = [place for place, known in enumerate(seen) if len(known) == least]
        place = min(places, key=lambda one: queues[one])
        seen[place].update(blocks)
        return place


def _leading(blocks: Sequence[bytes], known: set[bytes]) -> int:
    return next((depth for depth, one in enumerate(blocks) if one not in known), len(blocks))
