"""A tier that remembers: a source and a sink of blocks whose content lies in the null executor, by the hash of a chain.

What is in it outlives scheduler and executor, as a folder does, and may vanish at any time.
"""

from __future__ import annotations

from collections.abc import Sequence

from inflight.core.types.kv_blocks import KVMatch, SharedRoot, block_hash, root_hash
from inflight.core.types.request import Request

from .peering import identity


class RememberingTier:
    """elsewhere: of the null executors that share it."""

    tier = "shelf"

    def __init__(self, block_size: int, most: int = 1000) -> None:
        self.elsewhere: dict[str, dict[int, list[int]]] = {self.tier: {}}
        self.block_size, self.most = block_size, most
        self.asked = 0

    def copy(self) -> RememberingTier:
        """That goes on from here by itself."""
        copied = RememberingTier(self.block_size, self.most)
        copied.held.update(self.held)
        return copied

    def vanish(self, most: int) -> None:
        """Some of what is there, the oldest first."""
        for name in list(self.held)[:most]:
            del self.held[name]

    @property
    def held(self) -> dict[int, list[int]]:
        return self.elsewhere[self.tier]

    def match(self, request: Request, root: SharedRoot, token_ids: Sequence[int], held: int) -> KVMatch | None:
        self.asked += 1
        name, found = root_hash(root, identity(root.adapter)), []
        for at in range(len(token_ids) // self.block_size):
            name = block_hash(name, token_ids[at * self.block_size : (at + 1) * self.block_size])
            if at < held:
                continue
            if int.from_bytes(name) not in self.held:
                break
            found.append(int.from_bytes(name))
        return KVMatch("load", self.tier, tuple(found)) if found else None

    def name(self, before: bytes | SharedRoot, token_ids: Sequence[int]) -> bytes:
        return block_hash(
            root_hash(before, identity(before.adapter)) if isinstance(before, SharedRoot) else before, token_ids
        )

    def wants(self, name: bytes) -> bool:
        return int.from_bytes(name) not in self.held and len(self.held) < self.most
