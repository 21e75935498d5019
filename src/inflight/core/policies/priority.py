"""Priority levels, the lower number first (as vLLM's), with ageing; clearly higher ones push running ones out.

Strict levels starve the lower ones; here `AGEING` seconds of waiting are worth one level (as the upward moves of a
multi-level feedback queue, FastServe, arXiv 2305.05920). Preemption compares the levels as given: ageing brings a
request forward, but never at the cost of work that runs.
"""

from __future__ import annotations

from inflight.core.policies import Ordered, PolicyEntry, Rank
from inflight.core.sequence import SequenceView

AGEING = 10.0  # seconds of waiting that are worth one level


class Priority(Ordered):
    name = "priority"
    reads_priority = True

    def rank(self, view: SequenceView, now: float) -> Rank:
        return (view.priority + view.arrival / AGEING, view.arrival)

    def may_preempt(self, waiting: SequenceView, running: SequenceView) -> bool:
        return waiting.priority < running.priority


ENTRY = PolicyEntry(
    name="priority",
    reason="the lower number first, with ageing",
    make=lambda context: Priority(),
)
