"""Places in a waiting queue, shared by tenants' weights: who may still come in when it is full.

A queue with a bound is first come, first served: whoever fills it shuts the others out. Under a policy that knows
tenants (`Policy.shares`) its places are shared. While there is room anybody may come in, since nothing is kept free for
tenants that are not there. When it is full, a tenant that has less than its weighted share of the places, among the
tenants that wait, still may, and whoever has more is refused. A request with n samples takes n places.

Nobody who was accepted is put out to make room: what was let in was promised. So a queue may grow beyond its bound, by
as much as this: the tenants that wait, in the order in which each was last let in, had at most all places, half of
them, a third …; k tenants of equal weight hold no more than 1 + ln k times the bound (what was preempted besides). As a
share of less than one place lets nobody in, that ends at 1 + ln(bound): eight times 1,024 places. That is what somebody
gains who makes up names (without API keys clients choose them), and a smaller share for all others: one over the number
of names. API keys bind names to tenants.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from msgspec import Struct

from inflight.core.tenants.backlog import Backlog


class Shares:
    """Tenants' weights."""

    def __init__(self, weights: Mapping[str, float] | None = None):
        """weights: of tenants that are not worth 1."""
        self._weights = dict(weights or {})

    def weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)

    def total_weight(self, tenants: Iterable[str]) -> float:
        """The weight of all of them together."""
        return math.fsum(map(self.weight, tenants))

    def held(self, tenant: str, backlogs: Iterable[Backlog]) -> Held:
        """What a newcomer's tenant has of queues that count as one."""
        tenants, places, tokens = {tenant}, 0, 0
        for backlog in backlogs:
            mine = backlog.of(tenant)
            tenants |= backlog.tenants
            places, tokens = places + mine.places, tokens + mine.tokens
        return Held(places, tokens, self.weight(tenant) / self.total_weight(tenants))


class Held(Struct, frozen=True):
    """What one tenant has of a queue. places: its waiting sequences. tokens: their known ones. part: its weighted
    share, of 1."""

    places: int
    tokens: int
    part: float

    def may_take(self, places: int, bound: int) -> bool:
        """Whether it has no more than its share with so many more."""
        return self.places + places <= self.part * bound

    def may_take_tokens(self, tokens: int, bound: int) -> bool:
        return self.tokens + tokens <= self.part * bound

    def told(self, bound: int) -> str:
        """For a refusal."""
        return f"{self.places} of them are this tenant's, whose share is {math.floor(self.part * bound)}"
