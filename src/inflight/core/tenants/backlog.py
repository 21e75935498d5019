"""What waits in a queue, counted by tenant as it comes and goes, so that nobody has to walk through it for a newcomer.

Knows numbers and tenants' names.
"""

from __future__ import annotations

from collections.abc import Set

from msgspec import Struct


class Waiting(Struct):
    """places: sequences, each sample counted. tokens: known ones; samples share the prompt of the first of them."""

    places: int = 0
    tokens: int = 0

    def add(self, places: int, tokens: int) -> None:
        self.places += places
        self.tokens += tokens


class Backlog:
    __slots__ = ("_by_tenant", "total")

    def __init__(self) -> None:
        self.total = Waiting()
        self._by_tenant: dict[str, Waiting] = {}  # of tenants that wait

    @property
    def tenants(self) -> Set[str]:
        """Who waits."""
        return self._by_tenant.keys()

    def of(self, tenant: str) -> Waiting:
        return self._by_tenant.get(tenant) or Waiting()

    def came(self, tenant: str, places: int, tokens: int) -> None:
        self.total.add(places, tokens)
        self._by_tenant.setdefault(tenant, Waiting()).add(places, tokens)

    def went(self, tenant: str, places: int, tokens: int) -> None:
        """Of what came before."""
        self.total.add(-places, -tokens)
        mine = self._by_tenant[tenant]
        mine.add(-places, -tokens)
        if not mine.places:
            del self._by_tenant[tenant]
