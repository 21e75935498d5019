"""A policy of one's own: short prompts first, but nobody waits for ever. docs/write-a-policy.md walks through it."""

from __future__ import annotations

from inflight.core.policies import Ordered, Rank
from inflight.core.sequence import SequenceView

TOKENS_PER_SECOND = 50.0  # prompt tokens that a second of waiting makes up for


class ShortPromptsFirst(Ordered):
    name = "short-prompts-first"

    def rank(self, view: SequenceView, now: float) -> Rank:
        # Everyone ages alike, so `now` cancels out of every comparison, and the rank of one that waits never changes.
        return (view.prompt_tokens + TOKENS_PER_SECOND * view.arrival,)
