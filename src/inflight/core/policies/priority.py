"""Priority levels, the lower number first (as vLLM's), with ageing; higher levels preempt running lower ones.

Where a row is free, a higher level preempts none, and its prompt is computed before those of lower levels that run:
else it would wait longer beside free rows than without any.

Strict levels starve the lower ones; here `SECONDS_PER_LEVEL` seconds of waiting are worth one level (as the upward
moves of a multi-level feedback queue, FastServe, arXiv 2305.05920). Preemption compares the levels as given: ageing
moves a request forward, but never preempts for it. A running prompt that has aged past a newcomer goes on first.
"""

from __future__ import annotations

from inflight.core.policies import Policy, PolicyEntry, Rank
from inflight.core.sequence import SequenceView

SECONDS_PER_LEVEL = 10.0  # seconds of waiting that are worth one level


class Priority(Policy):
    name = "priority"
    reads_priority = True

    def rank(self, view: SequenceView, now: float) -> Rank:
        return (view.priority + view.arrival / SECONDS_PER_LEVEL, view.arrival)

    def may_preempt(self, waiting: SequenceView, running: SequenceView) -> bool:
        return waiting.priority < running.priority


ENTRY = PolicyEntry(
    name="priority",
    reason="the lower number first, with ageing",
    make=lambda context: Priority(),
)
