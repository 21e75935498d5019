"""Fair share between tenants: the virtual token counter, VTC (arXiv 2401.00588).

Each tenant's counter is charged PROMPT_WEIGHT per prompt token and OUTPUT_WEIGHT per output token, divided by the
tenant's weight. The waiting tenant with the least counter goes next, in order of arrival within it. A tenant that
begins to wait is lifted to the least counter of those that wait, or, if there are none, to that of the tenant that was
last taken from the queue: neither idle time nor time with little work is banked (algorithm 2 of the paper).
Work-conserving. Between two backlogged tenants of equal weight the gap in service stays within 2·max(w_p·L, w_q·M), L
the longest prompt, M the tokens that the running batch can have at most.

Preemption: the tenant that is furthest ahead loses its row first. The paper never preempts. Here a tenant that has no
more requests than its share of the rows (by weight, among tenants with requests), and goes next anyway, gets a row at
once, from a tenant ahead of it that has its share without it; and its prompt is computed before those that tenants
ahead of it run. Tenants with more requests wait for free rows, so that two floods do not preempt each other. The bound
holds as before: the counters choose who gets a row or tokens, and the loser is ahead.

If several engines serve the same tenants, each counter is charged with what the others gave (`served_elsewhere`), a
moment late: a tenant that has one engine for itself falls behind on those that it shares. A waiting tenant is charged
as it is; another is lifted first, as if it began to wait, since it was lifted elsewhere when it did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping

from inflight.core.policies import Policy, PolicyEntry, Rank
from inflight.core.sequence import SequenceView
from inflight.core.tenants import TenantWeights

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
MAX_IDLE_TENANTS = 4096  # tenants without requests whose counters are kept: clients choose tenants' names


class Fair(Policy):
    name = "fair"
    group_ranks_rise = True  # counters only rise; how many sequences a tenant has changes when one comes or ends
    shares: TenantWeights

    def __init__(self, weights: Mapping[str, float] | None = None):
        """weights: of tenants whose weight is not 1."""
        self.shares = TenantWeights(weights)
        self._counters: dict[str, float] = {}
        self._alive: Counter[str] = Counter()  # sequences that wait or run, of tenants that have any
        self._waiting: Counter[str] = Counter()  # of these, those that wait
        self._rows = 0  # in use by all
        self._alive_weight = 0.0  # of all tenants with sequences
        self._last_taken = ""  # tenant of the sequence last taken from the queue, or furthest ahead elsewhere
        self._charged: dict[str, float] | None = None  # by tenant, since `take_service`; None: it was never called

    def rank(self, view: SequenceView, now: float) -> Rank:
        return (self.running_rank(view), view.arrival)

    def running_rank(self, view: SequenceView) -> float:
        """Return the tenant's counter for a running sequence: the tenant with most service goes last. Among a tenant's
        waiting this part is the same."""
        return self._counters.get(view.tenant, 0.0) if view.is_running else 0.0

    def group(self, view: SequenceView) -> Hashable:
        return view.tenant

    def group_rank(self, group: Hashable, now: float) -> Rank:
        return self._tenant_rank(str(group))

    def may_preempt(self, waiting: SequenceView, running: SequenceView) -> bool:
        if not self.goes_before(waiting, running):
            return False
        rows = self._alive[running.tenant] - self._waiting[running.tenant]
        return rows - 1 >= self._row_share(running.tenant)

    def goes_before(self, waiting: SequenceView, running: SequenceView) -> bool:
        own, other = waiting.tenant, running.tenant
        if own == other or self._tenant_rank(own) >= self._tenant_rank(other):
            return False
        return self._alive[own] <= self._row_share(own)

    def arrived(self, view: SequenceView) -> None:
        self._alive[view.tenant] += 1
        if self._alive[view.tenant] == 1:
            self._sum_weights()
        self._add_waiting(view.tenant)

    def started(self, view: SequenceView) -> None:
        self._last_taken = view.tenant
        self._rows += 1
        _decrement(self._waiting, view.tenant)

    def preempted(self, view: SequenceView) -> None:
        self._rows -= 1
        self._add_waiting(view.tenant)

    def served(self, view: SequenceView, prompt_tokens: int, output_tokens: int, now: float) -> None:
        work = PROMPT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens
        self._charge(view.tenant, work)
        if self._charged is not None:
            self._charged[view.tenant] = self._charged.get(view.tenant, 0.0) + work

    def left(self, view: SequenceView) -> None:
        if view.is_running:
            self._rows -= 1
        else:
            _decrement(self._waiting, view.tenant)
        _decrement(self._alive, view.tenant)
        if view.tenant not in self._alive:
            self._sum_weights()
            self._drop_idle()

    def take_service(self) -> Mapping[str, float]:
        charged, self._charged = self._charged or {}, {}
        return charged

    def served_elsewhere(self, service: Mapping[str, float]) -> None:
        if not service:
            return
        min_counter = self._min_counter()
        for tenant, work in service.items():
            if tenant not in self._waiting:
                self._lift(tenant, min_counter)
            self._charge(tenant, work)
        if not self._waiting:
            # The tenant furthest ahead of those that are served is backlogged there: a newcomer here begins there.
            self._last_taken = max(service, key=self._counters.__getitem__)
        self._drop_idle()

    def _charge(self, tenant: str, work: float) -> None:
        self._counters[tenant] += work / self.shares.weight(tenant)

    def _drop_idle(self) -> None:
        """Keep of tenants without requests the half with the greatest counters. One that returns is lifted to the least
        counter of the waiting, so that a counter matters only to a tenant that is ahead of them."""
        if len(self._counters) <= len(self._alive) + MAX_IDLE_TENANTS:
            return
        idle = [name for name in self._counters if name not in self._alive and name != self._last_taken]
        idle.sort(key=self._counters.__getitem__)
        for name in idle[: -(MAX_IDLE_TENANTS // 2)]:
            del self._counters[name]

    def _add_waiting(self, tenant: str) -> None:
        if tenant not in self._waiting:
            self._lift(tenant, self._min_counter())
        self._waiting[tenant] += 1

    def _min_counter(self) -> float:
        """Return the counter that a tenant is lifted to when it begins to wait."""
        waiting = [self._counters[name] for name in self._waiting]
        return min(waiting) if waiting else self._counters.get(self._last_taken, 0.0)

    def _lift(self, tenant: str, min_counter: float) -> None:
        self._counters[tenant] = max(self._counters.get(tenant, 0.0), min_counter)

    def _tenant_rank(self, tenant: str) -> tuple[float, int]:
        """Rank by counter; a tenant that returns is lifted to its rivals', and on that tie the one with fewer sequences
        goes first."""
        return self._counters[tenant], self._alive[tenant]

    def _row_share(self, tenant: str) -> float:
        """Return the tenant's share by weight of the rows in use; at least 1."""
        return max(1.0, self._rows * self.shares.weight(tenant) / self._alive_weight)

    def _sum_weights(self) -> None:
        self._alive_weight = self.shares.total_weight(self._alive)


def _decrement(counts: Counter[str], tenant: str) -> None:
    counts[tenant] -= 1
    if counts[tenant] <= 0:  # below 0 if the scheduler failed before it reported the arrival
        del counts[tenant]


ENTRY = PolicyEntry(
    name="fair",
    reason="the tenant that was served least first",
    weighs_tenants=True,
    make=lambda context: Fair(context.tenant_weights),
)
