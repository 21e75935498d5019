"""Longest cached prefix first, with ageing.

Requests that share a prefix are served one after the other while its blocks are cached (longest prefix match of
RadixAttention, arXiv 2312.07104; with a guard against starving cache-cold requests, for which that order is known).
A second of waiting is worth `AGEING` cached tokens.
"""

from __future__ import annotations

from inflight.core.policies import Ordered, PolicyEntry, Rank
from inflight.core.sequence import SequenceView

AGEING = 100.0  # cached tokens that a second of waiting is worth


class Prefix(Ordered):
    name = "prefix"
    window = 128  # what is cached changes with every step

    def rank(self, view: SequenceView, now: float) -> Rank:
        return (AGEING * view.arrival - view.cached_tokens, view.arrival)


ENTRY = PolicyEntry(
    name="prefix",
    reason="longest cached prefix first, with ageing",
    make=lambda context: Prefix(),
)
