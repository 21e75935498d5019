"""Fair share between tenants: the virtual token counter, VTC (arXiv 2401.00588).

Each tenant's counter is charged PROMPT_WEIGHT per prompt token and OUTPUT_WEIGHT per output token as they are produced,
divided by the tenant's weight; the waiting tenant with the least counter goes next, in order of arrival within it. A
tenant that returns is lifted to the least counter of those that are active, so that idle time is not banked. Work-
conserving. Between two backlogged tenants of equal weight the gap in service stays within 2·max(w_p·L, w_q·M), L the
longest prompt, M the most tokens that the running batch can hold. The tenant that is furthest ahead is preempted first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping

from inflight.core.policies import Ordered, Rank
from inflight.core.sequence import SequenceView

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0


class Fair(Ordered):
    name = "fair"

    def __init__(self, weights: Mapping[str, float] | None = None):
        """weights: of tenants that are not worth 1."""
        self._weights = dict(weights or {})
        self._counters: dict[str, float] = {}
        self._active: Counter[str] = Counter()

    def rank(self, view: SequenceView, now: float) -> Rank:
        # Among the running, whose tenant has had most goes last; among a tenant's waiting this part is the same.
        return (self._counters.get(view.tenant, 0.0) if view.is_running else 0.0, view.arrival)

    def group(self, view: SequenceView) -> Hashable:
        return view.tenant

    def group_rank(self, group: Hashable) -> Rank:
        # A tenant that returns is lifted to its rivals' counter: on that tie, who has less in the engine goes first.
        return (self._counters[str(group)], self._active[str(group)])

    def arrived(self, view: SequenceView) -> None:
        tenant = view.tenant
        if not self._active[tenant]:
            others = [self._counters[name] for name, count in self._active.items() if count]
            floor = min(others) if others else max(self._counters.values(), default=0.0)
            self._counters[tenant] = max(self._counters.get(tenant, 0.0), floor)
        self._active[tenant] += 1

    def served(self, view: SequenceView, prompt_tokens: int, output_tokens: int) -> None:
        work = PROMPT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens
        self._counters[view.tenant] += work / self._weights.get(view.tenant, 1.0)

    def left(self, view: SequenceView) -> None:
        self._active[view.tenant] -= 1
