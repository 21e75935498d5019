"""Tenants: their weights, the share of each in a waiting queue, and the usage that engines exchange.

A queue with a limit is first come, first served, so that a flood shuts others out. Under a policy with tenants
(`Policy.shares`) a full queue still admits a tenant that has less than its weighted share of it, among the tenants that
wait; one that has more is refused. A request with n samples counts n times. No share is reserved for an absent tenant.

An admitted request is never dropped for another, so a queue may exceed its limit: of the tenants that wait, in the
order in which each was last admitted, the first had at most the whole limit, the next half of it, the next a third …;
k tenants of equal weight have at most 1 + ln k times the limit (besides preempted sequences). A share below one
sequence admits none, which bounds it at 1 + ln(limit): eight times 1,024. That is what a client gains by inventing
tenants (it names its tenant unless there are API keys), and a smaller share for all others: one over their number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set

from msgspec import Struct

TenantUsage = Mapping[str, Mapping[str, float]]  # lane → tenant → weighted tokens, as policies charge for them
SYNC_PERIOD_S = 0.25  # between two exchanges of usage


def usage_of_others(usage: Mapping[str, TenantUsage], own: str) -> TenantUsage:
    """Return what all engines but one gave since the last exchange.

    Differences are exchanged, never totals: a new engine holds nothing past against a tenant, and a lost one takes with
    it only what it had not reported.

    Args:
        usage: By engine.
        own: The engine to leave out.
    """
    total: dict[str, dict[str, float]] = {}
    for name, lanes in usage.items():
        if name == own:
            continue
        for lane, tenants in lanes.items():
            sums = total.setdefault(lane, {})
            for tenant, work in tenants.items():
                sums[tenant] = sums.get(tenant, 0.0) + work
    return total


class QueueCount(Struct):
    """Sequences that wait (each sample), and their known tokens (samples share the prompt of the first of them)."""

    sequences: int = 0
    tokens: int = 0

    def add(self, sequences: int, tokens: int) -> None:
        self.sequences += sequences
        self.tokens += tokens


class Backlog:
    """Counts of a waiting queue, in all and by tenant."""

    __slots__ = ("_by_tenant", "total")

    def __init__(self) -> None:
        self.total = QueueCount()
        self._by_tenant: dict[str, QueueCount] = {}  # of tenants that wait

    @property
    def tenants(self) -> Set[str]:
        return self._by_tenant.keys()

    def of(self, tenant: str) -> QueueCount:
        return self._by_tenant.get(tenant) or QueueCount()

    def add(self, tenant: str, sequences: int, tokens: int) -> None:
        """Count what joins the queue."""
        self.total.add(sequences, tokens)
        self._by_tenant.setdefault(tenant, QueueCount()).add(sequences, tokens)

    def remove(self, tenant: str, sequences: int, tokens: int) -> None:
        """Count what leaves the queue."""
        self.total.add(-sequences, -tokens)
        own = self._by_tenant[tenant]
        own.add(-sequences, -tokens)
        if not own.sequences:
            del self._by_tenant[tenant]


class TenantWeights:
    def __init__(self, weights: Mapping[str, float] | None = None):
        """weights: of tenants whose weight is not 1."""
        self._weights = dict(weights or {})

    def weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)

    def total_weight(self, tenants: Iterable[str]) -> float:
        return math.fsum(map(self.weight, tenants))

    def queue_share(self, tenant: str, backlogs: Iterable[Backlog]) -> QueueShare:
        """Return what a newcomer's tenant has of queues that count as one."""
        tenants, sequences, tokens = {tenant}, 0, 0
        for backlog in backlogs:
            own = backlog.of(tenant)
            tenants |= backlog.tenants
            sequences, tokens = sequences + own.sequences, tokens + own.tokens
        return QueueShare(sequences, tokens, self.weight(tenant) / self.total_weight(tenants))


class QueueShare(Struct, frozen=True):
    """Waiting sequences of one tenant, their known tokens, and its weighted share of the queue, from 0 to 1."""

    sequences: int
    tokens: int
    share: float

    def part_of(self, limit: int) -> int:
        """Return the tenant's part of a limit, of sequences or of tokens."""
        return int(self.share * limit)
