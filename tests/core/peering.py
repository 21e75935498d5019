"""Peers in miniature: what is given under an id lies where who takes it looks, in the null executor.

The same engine is both sides. What was given stays until a peer is lost, with all that it had.
"""

from __future__ import annotations

from inflight.core.types.kv_transfer import KVTransfer, PeerAddress, export_of, is_of_peers, peer_of
from inflight.core.types.sampling import Adapter

EXPORTS = ("one", "two", "three")
GIVES = [KVTransfer(give=export) for export in EXPORTS]
TAKES = [KVTransfer(take=PeerAddress("peer", 5000, export)) for export in EXPORTS]


def identity(adapter: Adapter | None) -> bytes:
    return b"" if adapter is None else str(adapter.number).encode()


class Elsewhere(dict[str, dict[int, list[int]]]):
    """Of a `NullExecutor`: the place of a taker is that of the giver."""

    def setdefault(self, place: str, default: dict[int, list[int]]) -> dict[int, list[int]]:  # type: ignore[override]
        if is_of_peers(place):
            place = f"export {export_of(place) or peer_of(place).export_id}"
        return super().setdefault(place, default)

    def lose_peers(self) -> None:
        for place in [one for one in self if one.startswith("export ")]:
            del self[place]
