"""Tiers and peers of an engine, as its parts are given them together.

Knows which there are; what is brought from them `prefix_loader` knows, what is kept in them `write_behind`.
"""

from __future__ import annotations

from msgspec import Struct

from inflight.core.estimation.latency import LatencyModel, RestoreCost
from inflight.core.kv.peer_source import Identity
from inflight.core.kv.prefix_loader import Worth
from inflight.core.types.kv_blocks import KVSource, KVStore


class BlockTiers(Struct, frozen=True):
    """sources: from which the blocks of waiting sequences' prefixes are brought. worth: when. sink: in which blocks are
    kept that can be found. identity: by which blocks of prompts are handed over to other engines; None: they are
    not."""

    sources: tuple[KVSource, ...]
    worth: Worth
    sink: KVStore | None = None
    identity: Identity | None = None

    def __bool__(self) -> bool:
        return bool(self.sources) or self.sink is not None or self.identity is not None


NO_TIERS = BlockTiers((), RestoreCost(LatencyModel()))
