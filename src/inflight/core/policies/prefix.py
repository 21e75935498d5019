"""Longest cached prefix first, with ageing.

Requests that share a prefix are served one after the other while its blocks are cached (longest prefix match of
RadixAttention, arXiv 2312.07104). That order is known to starve requests without a cached prefix, hence the ageing: a
second of waiting is worth `TOKENS_PER_SECOND` cached tokens.
"""

from __future__ import annotations

from inflight.core.policies import Policy, PolicyEntry, Rank
from inflight.core.sequence import SequenceView

TOKENS_PER_SECOND = 100.0  # cached tokens that a second of waiting is worth


class Prefix(Policy):
    name = "prefix"
    window = 128  # what is cached changes with every step

    def rank(self, view: SequenceView, now: float) -> Rank:
        return (TOKENS_PER_SECOND * view.arrival - view.cached_tokens, view.arrival)


ENTRY = PolicyEntry(
    name="prefix",
    reason="longest cached prefix first, with ageing",
    make=lambda context: Prefix(),
)
