"""Swap space: what preempted sequences will need again, kept on the host instead of being forgotten; and, where the
host is a tier of the prefix cache, what others may need.

Knows which blocks are wanted by preempted sequences, and which host blocks are free; asks for transfers. A wanted block
is stored only when its device block is really taken for something else, last blocks of a sequence first: a victim loses
what is needed and no more. Content that finds no room, or whose transfer failed, is forgotten. Where transfers are
asynchronous, the device block stays held, and its content findable, until it is stored (`store`); else it may be given
away in the plan that stores it (`evicted`).

Content that nobody wants is kept only in a tier, and gives way to what is wanted and to what comes later: first kept,
first to go, or by what its session is worth, where that is how blocks of the device are evicted.
Nobody ever waits for it to be stored: where transfers are asynchronous, blocks that are about to be taken are stored
before that (`store_ahead`), and what was not is forgotten.
(vLLM, arXiv 2309.06180, swaps a victim whole; here the prefix cache spans both memories.)
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.eviction import EvictionOrder, LeastRecentlyReleased
from inflight.core.kv.prefix_cache import CachedBlock, PrefixCache
from inflight.core.kv.transfers import Transfers
from inflight.core.types.plan import HOST

FEW = 16  # of the pool: free blocks below one in so many are few

Places = tuple[CachedBlock, ...]
Blocks = tuple[int, ...]


class SwapSpace:
    def __init__(
        self,
        host_blocks: int,
        prefix: PrefixCache,
        pool: BlockPool,
        transfers: Transfers,
        is_tier: bool = False,
        order: EvictionOrder | None = None,
    ):
        """is_tier: whether what nobody wants is kept, too. order: of host blocks, in which they give way; None: first
        kept, first to go."""
        self._is_tier = is_tier
        self._kept: dict[int, CachedBlock] = {}  # by host block: what is wanted by nobody
        self._order: EvictionOrder = LeastRecentlyReleased() if order is None else order  # of these
        self._stored_ahead = 0  # blocks that are being stored before they are taken
        self._prefix = prefix
        self._pool = pool
        self._transfers = transfers
        self._free = list(range(host_blocks - 1, -1, -1))
        self._wanted: dict[int, list[int]] = {}  # node → numbers of preempted sequences that will look for it
        self.host_blocks = host_blocks
        self.sequences = 0  # preempted ones that have blocks wanted
        self.storing = 0  # transfers that are out, whose device blocks will be there for others

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def kept(self) -> int:
        """Host blocks with content that nobody wants yet."""
        return len(self._kept)

    def free_blocks(self) -> tuple[int, ...]:
        return tuple(self._free)

    def wanted_blocks(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Host blocks with content that preempted sequences will look for, and the numbers of these."""
        found = ((self._prefix.block_of(node), numbers) for node, numbers in self._wanted.items())
        return tuple(
            (place.host_block, tuple(numbers))
            for place, numbers in found
            if place is not None and place.host_block is not None
        )

    def want(self, places: Iterable[CachedBlock], number: int) -> tuple[int, ...]:
        """The preempted sequence of this number will come back for these; returns their nodes, to be given up
        later."""
        wanted = tuple(places)
        nodes = tuple(place.node for place in wanted)
        for node in nodes:
            self._wanted.setdefault(node, []).append(number)
        self.hold(wanted)
        self.sequences += bool(nodes)
        return nodes

    def give_up(self, nodes: tuple[int, ...], number: int, owner: object = None) -> None:
        """It came back or ended: what only it wanted need not be kept on the host. owner: whose content that is."""
        self.sequences -= bool(nodes)
        for node in nodes:
            numbers = self._wanted.get(node)
            if numbers is not None:  # else all was forgotten meanwhile
                numbers.remove(number)
                if numbers:
                    continue
                del self._wanted[node]
            place = self._prefix.block_of(node)
            if place is not None and place.host_block is not None:
                if self._is_tier:
                    self._keep(place, owner)
                else:
                    self._prefix.drop(place)
                    self._set_free(place.host_block)

    def evicted(self, block: int) -> None:
        """A device block with findable content is about to be reused, and what it holds is stored or forgotten."""
        place = self._prefix.at(block)
        is_wanted = place.node in self._wanted
        if not self._transfers.asynchronous and (is_wanted or self._is_tier) and self._room():
            host_block = self._free.pop()
            self._transfers.begin("store", HOST, (block,), (host_block,), lambda done: None)
            owner = self._pool.owner(block)
            self._prefix.move(place, None, host_block)
            if not is_wanted:
                self._keep(place, owner)
        else:
            self._prefix.drop(place)

    def clears(self, count: int, spared: Iterable[int | None] = ()) -> bool:
        """Whether so many of the available blocks, none of these, can be taken now. Where transfers are asynchronous,
        what is to be kept of them is stored first, and that begins."""
        return not (self._transfers.asynchronous and self.store(self._pool.next_evicted(count, spared)))

    def store(self, blocks: Iterable[int]) -> bool:
        """Begin to store what is wanted of these evictable blocks, while there is room; whether anything is."""
        wanted = (place for place in map(self._prefix.at, blocks) if place.node in self._wanted)
        places = tuple(wanted)[: self.free + self.kept]
        if not places:
            return False
        host_blocks = self._take(len(places))
        blocks = tuple(place.block for place in places if place.block is not None)
        self._transfers.begin("store", HOST, blocks, host_blocks, partial(self._stored, places, host_blocks))
        self.storing += 1
        return True

    def hold(self, places: Iterable[CachedBlock]) -> None:
        """They are about to be loaded: none of them gives way to what is stored before that."""
        for place in places:
            if place.host_block is not None and self._kept.pop(place.host_block, None) is not None:
                self._order.discard(place.host_block)

    def store_ahead(self) -> None:
        """Where nobody may wait for it: what is about to be taken, and nobody wants, begins to be stored, a few blocks
        at a time, while few are free and many are not held."""
        if not self._is_tier or not self._transfers.asynchronous or self._stored_ahead:
            return
        few = max(1, self._pool.num_blocks // FEW)
        if self._pool.free >= few or self._pool.evictable < 2 * few:
            return
        coming = map(self._prefix.at, self._pool.next_evicted(self._pool.free + few, ()))
        places = tuple(place for place in coming if place.node not in self._wanted)[: self.free + self.kept]
        if not places:
            return
        host_blocks = self._take(len(places))
        blocks = tuple(place.block for place in places if place.block is not None)
        self._stored_ahead = len(blocks)
        self._transfers.begin("store", HOST, blocks, host_blocks, partial(self._is_stored_ahead, places, host_blocks))

    def load(self, places: Places, blocks: Blocks) -> None:
        """Copy nodes' content from the host into new device blocks. From the next plan on, or when the transfer has
        ended, the host blocks are free."""
        host_blocks = tuple(place.host_block for place in places if place.host_block is not None)
        for place, block in zip(places, blocks, strict=True):
            self._prefix.move(place, block, None)
        transfer_id = self._transfers.begin(
            "load", HOST, blocks, host_blocks, partial(self._loaded, places, host_blocks)
        )
        if self._transfers.asynchronous:
            for place in places:
                place.loading = transfer_id

    def forget_all(self) -> None:
        """Nothing on the host can be trusted any more; its blocks are free but for those of transfers that are out."""
        of_host = (transfer for transfer in self._transfers.out.values() if transfer.tier == HOST)
        busy = {host_block for transfer in of_host for host_block in transfer.remote_blocks}
        self._free = [host_block for host_block in range(self.host_blocks - 1, -1, -1) if host_block not in busy]
        self._wanted.clear()
        self._kept.clear()
        self._order.clear()

    def _stored(self, places: Places, host_blocks: Blocks, done: bool) -> None:
        """What nobody holds meanwhile, and somebody still wants, is on the host now, or lost."""
        self.storing -= 1
        for place, host_block in zip(places, host_blocks, strict=True):
            is_alone = not place.lost and place.block is not None and self._pool.ref_count(place.block) == 1
            if done and is_alone and place.node in self._wanted:
                self._prefix.move(place, None, host_block)
                continue
            self._set_free(host_block)
            if is_alone and not done:
                self._prefix.drop(place)

    def _is_stored_ahead(self, places: Places, host_blocks: Blocks, done: bool) -> None:
        """What nobody holds meanwhile is on the host now, or lost: were it kept, it would be stored with every plan for
        as long as the host fails, and nothing would ever be idle."""
        self._stored_ahead = 0
        for place, host_block in zip(places, host_blocks, strict=True):
            is_alone = not place.lost and place.block is not None and self._pool.ref_count(place.block) == 1
            if not done or not is_alone:
                self._set_free(host_block)
                if is_alone:
                    self._prefix.drop(place)
                continue
            owner = None if place.block is None else self._pool.owner(place.block)
            self._prefix.move(place, None, host_block)
            if place.node not in self._wanted:
                self._keep(place, owner)

    def _keep(self, place: CachedBlock, owner: object) -> None:
        """It is on the host, and nobody wants it."""
        assert place.host_block is not None, "what is kept is on the host"
        self._kept[place.host_block] = place
        self._order.add(place.host_block, owner)

    def _set_free(self, host_block: int) -> None:
        self._order.forget(host_block)
        self._free.append(host_block)

    def _room(self) -> bool:
        """Whether there is a free host block, if need be since something that is kept gives way."""
        if not self._free and self._kept:
            host_block = self._order.pop()
            self._prefix.drop(self._kept.pop(host_block))
            self._set_free(host_block)
        return bool(self._free)

    def _take(self, count: int) -> Blocks:
        """So many host blocks, which there are."""
        taken = []
        for _ in range(count):
            self._room()
            taken.append(self._free.pop())
        return tuple(taken)

    def _loaded(self, places: Places, host_blocks: Blocks, done: bool) -> None:
        for host_block in host_blocks:
            self._set_free(host_block)
        for place in places:
            place.loading = 0
            if not done and not place.lost:
                self._prefix.drop(place)
