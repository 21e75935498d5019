"""Peers and a tier in miniature: what one stores, sends or exports lies in null executors, where others find it."""

from __future__ import annotations

from typing import Any

from inflight.core.types.kv_blocks import KVChain, SharedRoot, root_hash
from inflight.core.types.kv_transfer import KVTransfer, PeerAddress, export_of, is_of_peers, peer_of
from inflight.core.types.request import Request
from inflight.core.types.sampling import Adapter

EXPORTS = ("one", "two", "three")
GIVES = [KVTransfer(give=export) for export in EXPORTS]
TAKES = [KVTransfer(take=PeerAddress("peer", 5000, export)) for export in EXPORTS]


def identity(adapter: Adapter | None) -> bytes:
    return b"" if adapter is None else str(adapter.number).encode()


class Elsewhere(dict[str, dict[int, list[int]]]):
    """Tiers of a `NullExecutor` in which a taker's is the giver's. Exports stay until peers are lost.

    states: exported recurrent states, by number."""

    def __init__(self, tiers: dict[str, dict[int, list[int]]]) -> None:
        super().__init__(tiers)
        self.states: dict[int, Any] = {}

    def setdefault(self, tier: str, default: dict[int, list[int]]) -> dict[int, list[int]]:
        if is_of_peers(tier):
            tier = f"export {export_of(tier) or peer_of(tier).export_id}"
        return super().setdefault(tier, default)

    def lose_peers(self) -> None:
        for tier in [one for one in self if one.startswith("export ")]:
            del self[tier]


class RememberingTier:
    """A source and a sink of blocks, by the hash of a chain; it outlives engines, as a folder does.

    elsewhere: of the null executors that share it."""

    tier = "shelf"

    def __init__(self, block_size: int, most: int = 1000) -> None:
        self.elsewhere: dict[str, dict[int, list[int]]] = {self.tier: {}}
        self.block_size, self.most = block_size, most
        self.states: dict[int, Any] = {}  # what the recurrent states are that it got, by number
        self.asked = 0

    def copy(self) -> RememberingTier:
        """Return a tier with the same blocks."""
        copied = RememberingTier(self.block_size, self.most)
        copied.held.update(self.held)
        copied.states.update(self.states)
        return copied

    def vanish(self, most: int) -> None:
        """Some of what is there, the oldest first."""
        for name in list(self.held)[:most]:
            del self.held[name]

    @property
    def held(self) -> dict[int, list[int]]:
        return self.elsewhere[self.tier]

    def chain(self, request: Request, root: SharedRoot) -> KVChain:
        self.asked += 1
        return KVChain("load", self.tier, self.root(root), lambda index, group, number: number in self.held)

    def root(self, root: SharedRoot) -> bytes:
        return root_hash(root, identity(root.adapter))

    def wants(self, number: int) -> bool:
        return number not in self.held and len(self.held) < self.most
