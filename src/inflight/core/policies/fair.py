"""Fair share between tenants: the virtual token counter, VTC (arXiv 2401.00588).

Each tenant's counter is charged PROMPT_WEIGHT per prompt token and OUTPUT_WEIGHT per output token as they are produced,
divided by the tenant's weight; the waiting tenant with the least counter goes next, in order of arrival within it. A
tenant that comes to wait while none of its requests waits is lifted to the least counter of those that wait, or, if
nobody does, to that of the tenant that was last taken from the queue: so neither idle time nor time in which it asked
for little is banked (algorithm 2 of the paper). Work-conserving. Between two backlogged tenants of equal weight the gap
in service stays within 2·max(w_p·L, w_q·M), L the longest prompt, M the most tokens that the running batch can hold.

Rows: the tenant that is furthest ahead is preempted first. The paper never preempts; here a tenant that asks for no
more rows than its share of them (by weight, among those with requests), and goes next anyway, gets one at once, from a
tenant ahead of it that has its share without it. Tenants that ask for more wait for rows to come free and push nobody
out, so that two floods do not take each other's work apart. The bound holds as before: who gets a row is whom the
counters name, and who loses one is ahead.

Where several engines serve the same tenants, what the others gave is charged here too (`served_elsewhere`), so that
each counter tells of all of them, a moment late: a tenant that has one engine for itself goes behind on those that it
shares. Who waits here is charged as it is; whoever does not is lifted first, as if it came to wait, since elsewhere it
was lifted when it did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping

from inflight.core.policies import Ordered, PolicyEntry, Rank
from inflight.core.sequence import SequenceView
from inflight.core.tenants import TenantWeights

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
MOST_GONE = 4096  # tenants without requests whose counters are kept: clients choose tenants' names


class Fair(Ordered):
    name = "fair"
    group_ranks_rise = True  # counters only rise; how many sequences a tenant has changes when one comes or ends
    shares: TenantWeights

    def __init__(self, weights: Mapping[str, float] | None = None):
        """weights: of tenants that are not worth 1."""
        self.shares = TenantWeights(weights)
        self._counters: dict[str, float] = {}
        self._inside: Counter[str] = Counter()  # sequences that wait or run; tenants without are left out, below too
        self._waiting: Counter[str] = Counter()
        self._rows = 0  # in use by all
        self._weight_inside = 0.0  # of all tenants inside
        self._last_taken = ""  # whose sequence was last taken from the queue, or who was served elsewhere meanwhile
        self._given: dict[str, float] | None = None  # to tenants since it was last asked; None: nobody ever asked

    def rank(self, view: SequenceView, now: float) -> Rank:
        # Among the running, whose tenant has had most goes last; among a tenant's waiting this part is the same.
        return (self._counters.get(view.tenant, 0.0) if view.is_running else 0.0, view.arrival)

    def group(self, view: SequenceView) -> Hashable:
        return view.tenant

    def group_rank(self, group: Hashable, now: float) -> Rank:
        return self._place(str(group))

    def may_preempt(self, waiting: SequenceView, running: SequenceView) -> bool:
        mine, other = waiting.tenant, running.tenant
        if mine == other or self._place(mine) >= self._place(other):
            return False
        held = self._inside[other] - self._waiting[other]
        return self._inside[mine] <= self._share(mine) and held - 1 >= self._share(other)

    def arrived(self, view: SequenceView) -> None:
        self._inside[view.tenant] += 1
        if self._inside[view.tenant] == 1:
            self._sum_weights()
        self._waits(view.tenant)

    def started(self, view: SequenceView) -> None:
        self._last_taken = view.tenant
        self._rows += 1
        _less(self._waiting, view.tenant)

    def preempted(self, view: SequenceView) -> None:
        self._rows -= 1
        self._waits(view.tenant)

    def served(self, view: SequenceView, prompt_tokens: int, output_tokens: int, now: float) -> None:
        work = PROMPT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens
        self._charge(view.tenant, work)
        if self._given is not None:
            self._given[view.tenant] = self._given.get(view.tenant, 0.0) + work

    def left(self, view: SequenceView) -> None:
        if view.is_running:
            self._rows -= 1
        else:
            _less(self._waiting, view.tenant)
        _less(self._inside, view.tenant)
        if view.tenant not in self._inside:
            self._sum_weights()
            self._forget()

    def take_service(self) -> Mapping[str, float]:
        given, self._given = self._given or {}, {}
        return given

    def served_elsewhere(self, service: Mapping[str, float]) -> None:
        if not service:
            return
        floor = self._floor()
        for tenant, work in service.items():
            if tenant not in self._waiting:
                self._lift(tenant, floor)
            self._charge(tenant, work)
        if not self._waiting:
            # Who is furthest ahead of those that are served is backlogged there: a newcomer here begins where it is.
            self._last_taken = max(service, key=self._counters.__getitem__)
        self._forget()

    def _charge(self, tenant: str, work: float) -> None:
        self._counters[tenant] += work / self.shares.weight(tenant)

    def _forget(self) -> None:
        """Keep of the tenants that are gone the half with the greatest counters. Who returns is lifted to the least
        counter of the waiting, so that a counter matters only to a tenant that is ahead of them."""
        if len(self._counters) <= len(self._inside) + MOST_GONE:
            return
        gone = [name for name in self._counters if name not in self._inside and name != self._last_taken]
        gone.sort(key=self._counters.__getitem__)
        for name in gone[: -(MOST_GONE // 2)]:
            del self._counters[name]

    def _waits(self, tenant: str) -> None:
        """A sequence of the tenant joins the queue."""
        if tenant not in self._waiting:
            self._lift(tenant, self._floor())
        self._waiting[tenant] += 1

    def _floor(self) -> float:
        """Counter that a tenant has at least which comes to wait."""
        waiting = [self._counters[name] for name in self._waiting]
        return min(waiting) if waiting else self._counters.get(self._last_taken, 0.0)

    def _lift(self, tenant: str, floor: float) -> None:
        self._counters[tenant] = max(self._counters.get(tenant, 0.0), floor)

    def _place(self, tenant: str) -> tuple[float, int]:
        """A tenant that returns is lifted to its rivals' counter: on that tie, who has less inside goes first."""
        return self._counters[tenant], self._inside[tenant]

    def _share(self, tenant: str) -> float:
        """Rows of those in use that are the tenant's by weight, one at least."""
        return max(1.0, self._rows * self.shares.weight(tenant) / self._weight_inside)

    def _sum_weights(self) -> None:
        """Who is inside has changed."""
        self._weight_inside = self.shares.total_weight(self._inside)


def _less(counts: Counter[str], tenant: str) -> None:
    counts[tenant] -= 1
    if counts[tenant] <= 0:  # below, where the scheduler was broken off before it said that somebody came
        del counts[tenant]


ENTRY = PolicyEntry(
    name="fair",
    reason="the tenant that was served least first",
    weighs_tenants=True,
    make=lambda context: Fair(context.tenant_weights),
)
