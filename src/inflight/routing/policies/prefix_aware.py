"""Where the request costs least, in seconds: until its first token comes, and what it takes from others.

For a prompt of which a replica lacks u tokens, with n requests in flight there:

    queue(u) + prefill(u) / (1 - reuse) + L · (step(n + 1) + n · row)

that is: what is computed before it, its own prompt, and L steps of an answer, each of which it waits for and makes
longer for n others. Computed blocks evict others from the cache, of which the share `reuse` would have been found
again and must be recomputed, which evicts others in turn: 1 + reuse + reuse² + … So a prefix is worth the seconds that
it saves, now and later; where the queue before its replica is longer by more, the request goes elsewhere and takes the
prefix along. There is no load limit to set: the saving is the limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from inflight.routing.policies.policy import Candidate
from inflight.routing.routed_request import RoutedRequest

_MAX_REUSE = 0.95


class PrefixAware:
    uses_prefixes = True

    def choose(self, request: RoutedRequest, candidates: Sequence[Candidate]) -> int:
        length, expected, tenant = len(request.prompt), request.expected_tokens, request.tenant
        own = 1 - min(request.reuse, _MAX_REUSE)
        best, min_cost = 0, (math.inf, 0)
        for at, (replica, cached) in enumerate(candidates):
            costs, lacking, running = replica.costs, length - cached, replica.requests
            if running >= costs.max_num_seqs:
                running = costs.max_num_seqs - 1
            queued = replica.queued_seconds(tenant, lacking, expected)
            answer = expected * (costs.decode_step(running + 1) + running * costs.row)
            seconds = queued + costs.prefill(lacking) / own + answer
            if (seconds, replica.requests) < min_cost:
                best, min_cost = at, (seconds, replica.requests)
        return best
