"""Swap space: what preempted sequences will need again, kept on the host instead of being forgotten.

Knows which device blocks are wanted by preempted sequences, which host blocks are free, and the moves of the plan under
construction. A wanted block is copied out only when its device block is really taken for something else, last blocks of
a sequence first: a victim loses what is needed and no more. Content that is not wanted, or finds no room, is forgotten.
(vLLM, arXiv 2309.06180, swaps a victim whole; here the prefix cache spans both memories.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from inflight.core.kv.prefix_cache import CachedBlock, PrefixCache
from inflight.core.types.plan import BlockMoves


class SwapSpace:
    def __init__(self, host_blocks: int, prefix: PrefixCache):
        self._prefix = prefix
        self._free = list(range(host_blocks - 1, -1, -1))
        self._wanted: Counter[int] = Counter()  # node → preempted sequences that will look for it
        self._out: list[tuple[int, int]] = []
        self._back: list[tuple[int, int]] = []
        self.host_blocks = host_blocks
        self.sequences = 0  # preempted ones that have blocks wanted

    @property
    def free(self) -> int:
        return len(self._free)

    def want(self, places: Iterable[CachedBlock]) -> tuple[int, ...]:
        """A preempted sequence will come back for these; returns their nodes, to be given up later."""
        nodes = tuple(place.node for place in places)
        self._wanted.update(nodes)
        self.sequences += bool(nodes)
        return nodes

    def give_up(self, nodes: tuple[int, ...]) -> None:
        """It came back or ended: what only it wanted need not be kept on the host."""
        self.sequences -= bool(nodes)
        for node in nodes:
            self._wanted[node] -= 1
            if self._wanted[node] > 0:
                continue
            del self._wanted[node]
            place = self._prefix.block_of(node)
            if place is not None and place.host_block is not None:
                self._prefix.drop(place)
                self._free.append(place.host_block)

    def evicted(self, block: int) -> None:
        """A device block with findable content is about to be reused."""
        place = self._prefix.at(block)
        if place.node in self._wanted and self._free:
            host_block = self._free.pop()
            self._out.append((block, host_block))
            self._prefix.move(place, None, host_block)
        else:
            self._prefix.drop(place)

    def bring_back(self, place: CachedBlock, block: int) -> None:
        """Copy a node's content from the host into a new device block."""
        assert place.host_block is not None
        self._back.append((place.host_block, block))
        self._prefix.move(place, block, None)

    def drain(self) -> BlockMoves:
        """The moves of the plan that is being finished. Host blocks that were read are free from the next plan on."""
        moves = BlockMoves(tuple(self._out), tuple(self._back))
        self._free += [host_block for host_block, _ in self._back]
        self._out, self._back = [], []
        return moves

    def forget_all(self) -> None:
        """Nothing on the host can be trusted any more."""
        self._free = list(range(self.host_blocks - 1, -1, -1))
        self._wanted.clear()
        self._out, self._back = [], []
