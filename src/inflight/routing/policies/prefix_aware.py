"""Where the request costs least, in seconds: until its first token comes, and what it takes from others.

For a prompt of which a replica lacks u tokens, on top of n requests under way there:

    queue(u) + prefill(u) / (1 - reuse) + L · (step(n + 1) + n · row)

that is: what is computed before it, its own prompt, and L steps of an answer, each of which it waits for and which it
makes longer for n others. What is computed takes the place of something else in the cache, of which the share `reuse`
would have been found again and must be computed anew, which takes the place of something else: 1 + reuse + reuse² + …
So a prefix is worth the seconds that it saves, now and later; where the line before the replica that has it is longer
by more, the request goes elsewhere and takes the prefix along. The load bound is no number that somebody must set, it
is the saving itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from inflight.routing.policies.policy import Candidate
from inflight.routing.routed_request import RoutedRequest

_MOST_REUSE = 0.95  # nobody knows it better


class PrefixAware:
    uses_prefixes = True

    def choose(self, request: RoutedRequest, candidates: Sequence[Candidate]) -> int:
        length, expected, tenant = len(request.prompt), request.expected_tokens, request.tenant
        own = 1 - min(request.reuse, _MOST_REUSE)
        place, least = 0, (math.inf, 0)
        for at, (replica, cached) in enumerate(candidates):
            costs, lacking, running = replica.costs, length - cached, replica.requests
            if running >= costs.max_num_seqs:
                running = costs.max_num_seqs - 1
            queued = replica.queued_seconds(tenant, lacking, expected)
            answer = expected * (costs.decode_step(running + 1) + running * costs.row)
            seconds = queued + costs.prefill(lacking) / own + answer
            if (seconds, replica.requests) < least:
                place, least = at, (seconds, replica.requests)
        return place
