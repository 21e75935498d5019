"""The prefix loader: brings what a waiting sequence's prefix continues with in a tier or with a peer.

Knows sources (`core.types.kv_blocks`) and what of their blocks is on its way. The blocks are taken, and can be found
in the prefix cache at once, marked as loading; their transfer alone holds them, so that no waiting sequence holds any
and waiting cannot deadlock. When it has ended they are cached blocks like all others; if it failed they are forgotten,
and computed. Each time that a sequence waits it is fetched for once: what was brought and given away again is computed.
Whether bringing is worth it, `estimation.latency` says; who stands apart meanwhile, `scheduling.prefix_fetching`.
"""

from __future__ import annotations

from collections.abc import Sequence as Sequences
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.prefix_cache import CachedBlock, PrefixCache
from inflight.core.kv.prefix_sharing import Lookup, PrefixSharing
from inflight.core.kv.transfers import Transfers
from inflight.core.kv.write_behind import WriteBehind
from inflight.core.sequence import Sequence
from inflight.core.types.kv_blocks import KVMatch, KVSource, SharedRoot
from inflight.counted import counted

MOST_AHEAD = 0.5  # share of the pool that may be brought for those that still wait


class Worth(Protocol):
    """Whether bringing blocks is worth it, and what became of that."""

    def choose_load(self, tier: str, blocks: int, start: int, tokens: int) -> bool:
        """Whether so many blocks come sooner than `tokens` tokens from position `start` on are computed."""

    def observe(self, tier: str, blocks: int, seconds: float) -> None: ...


@dataclass(slots=True)
class LoaderCounts:
    """Blocks since the engine began, by what became of them. asked: that sources were asked for. declined: computing
    them was cheaper."""

    asked: int = 0
    brought: int = 0
    failed: int = 0
    declined: int = 0


class PrefixLoader:
    def __init__(
        self,
        pool: BlockPool,
        prefix: PrefixCache,
        sharing: PrefixSharing,
        transfers: Transfers,
        sources: Sequences[KVSource],
        worth: Worth,
        block_size: int,
        writes: WriteBehind | None = None,
    ):
        """writes: to which what was brought is told, since more may be chained to it."""
        self._writes = writes
        self._pool, self._prefix, self._sharing, self._transfers = pool, prefix, sharing, transfers
        self._sources, self._worth, self._size = sources, worth, block_size
        self._out: dict[int, float] = {}  # transfer_id → when they began
        self._ended: list[tuple[int, str, int, bool]] = []  # since they were asked for
        self._told: dict[int, tuple[int, KVMatch | None]] = {}  # by number: behind so many blocks, what there is
        self._ahead: dict[int, int] = {}  # blocks that were brought for those that still wait, by number
        self.counts = LoaderCounts()

    def loading(self, sequence: Sequence) -> int:
        """Return the id of the transfer in flight that loads the last cached block of a waiting sequence; 0: none."""
        places = self._sharing.find(sequence).chain.places
        return places[-1].loading if places and places[-1].loading in self._out else 0

    def start_load(self, sequence: Sequence, spare: int, now: float, is_due: bool = True) -> int:
        """Begin to load the blocks that follow a waiting sequence's cached ones, if that is worth it.

        Args:
            sequence: A sequence for which `loading` is 0.
            spare: Blocks that must stay available.
            now: Time in seconds.
            is_due: Whether the sequence is next in its queue.

        Returns:
            The transfer's id; 0 where none began.
        """
        lookup = self._sharing.find(sequence)
        if lookup.fetched:
            return 0
        found = self._continuation(sequence, lookup)
        if found is None:
            lookup.fetched = True
            return 0
        if not self._has_room(sequence, lookup, found, spare, is_due):
            return 0
        lookup.fetched = True
        return self._bring(sequence, lookup, found, now)

    def left(self, sequence: Sequence) -> None:
        """It waits no longer."""
        self._ahead.pop(sequence.number, None)
        self._told.pop(sequence.number, None)

    def drain_loads(self, now: float) -> list[int]:
        """Return the ids of the loads that have ended since the last call."""
        ended, self._ended = self._ended, []
        for transfer_id, place, blocks, done in ended:
            began = self._out.pop(transfer_id)
            if done:
                self._worth.observe(place, blocks, now - began)
        return [transfer_id for transfer_id, *_ in ended]

    # -- inside -------------------------------------------------------------------------------------------------
    def _continuation(self, sequence: Sequence, lookup: Lookup) -> KVMatch | None:
        """The longest that any source has, as far as bringing it is worth it."""
        root, most = self._sharing.root(sequence), sequence.max_cached_tokens // self._size
        held = len(lookup.chain.places)
        if not isinstance(root, SharedRoot) or held >= most:
            return None
        before, found = self._told.get(sequence.number, (-1, None))
        if before != held:
            tokens = sequence.token_slice(0, most * self._size)
            told = (one.match(sequence.request, root, tokens, held) for one in self._sources)
            found = max((one for one in told if one is not None), key=_length, default=None)
            self._told[sequence.number] = held, found
            self.counts.asked += most - held
        if found is None or not found.remote_blocks:
            return None
        blocks = len(found.remote_blocks)
        if blocks > most - held:
            raise RuntimeError(
                f"{found.tier} tells of {counted(blocks, 'block')} behind {held}, and {most} can be used"
            )
        if found.always or self._worth.choose_load(found.tier, blocks, held * self._size, blocks * self._size):
            return found
        self.counts.declined += blocks
        return None

    def _has_room(self, sequence: Sequence, lookup: Lookup, found_there: KVMatch, spare: int, is_due: bool) -> bool:
        """Whether the sequence could be admitted behind them, and there is not too much ahead of its time already,
        which would be given away for it: of what would otherwise be computed twice, nothing is once its turn has come.
        """
        blocks = len(found_there.remote_blocks)
        is_much = sum(self._ahead.values()) + blocks > MOST_AHEAD * self._pool.num_blocks
        if is_much and self._ahead and not (found_there.always and is_due):
            return False
        found = self._pool.count_evictable(place.block for place in lookup.chain.places)
        return self._pool.available - found - blocks >= spare

    def _bring(self, sequence: Sequence, lookup: Lookup, found: KVMatch, now: float) -> int:
        before = [place.block for place in lookup.chain.places if place.block is not None]
        for block in before:  # what it is to follow must not be given away for it
            self._pool.acquire(block)
        blocks = self._pool.allocate(len(found.remote_blocks))
        size, held = self._size, len(lookup.chain.places)
        node = lookup.chain.places[-1].node if held else self._sharing.root(sequence)
        places: list[CachedBlock] = []
        for at, block in enumerate(blocks, held):
            node = self._prefix.publish(node, sequence.token_slice(at * size, (at + 1) * size), block)
            places.append(self._prefix.at(block))
        ended = partial(self._loaded, found.tier, places)
        transfer_id = self._transfers.begin(found.kind, found.tier, blocks, found.remote_blocks, ended)
        for place in places:
            place.loading = transfer_id
        self._pool.release(
            reversed((*before, *blocks)), self._prefix.__contains__
        )  # the transfer has its own references
        self._out[transfer_id] = now
        self._ahead[sequence.number] = len(blocks)
        return transfer_id

    def _loaded(self, from_place: str, places: list[CachedBlock], done: bool) -> None:
        transfer_id = places[0].loading
        self._ended.append((transfer_id, from_place, len(places), done))
        self.counts.brought += len(places) * done
        self.counts.failed += len(places) * (not done)
        for place in places:
            place.loading = 0
            if place.lost:
                continue
            if not done:
                self._prefix.drop(place)
            elif self._writes is not None:
                self._writes.loaded(place.node, cast(int | SharedRoot, place.key[0]), place.token_ids)


def _length(found: KVMatch) -> int:
    return len(found.remote_blocks)
