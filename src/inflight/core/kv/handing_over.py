"""Handing over: blocks of prompts that are held for other engines, from when they are computed until one has them.

Knows which blocks of whose prompt are told already, and asks for a ticket for those that were computed since: it holds
them whatever becomes of the sequence. Does not know who comes for them, nor when.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.peer_source import Identity, handed_blocks
from inflight.core.kv.transfers import Transfers
from inflight.core.sequence import Sequence
from inflight.core.types.block_names import next_name, root_name
from inflight.core.types.cache_changes import SharedRoot
from inflight.core.types.peers import giving_place


@dataclass(slots=True)
class _Given:
    """Of one prompt: blocks that are told, the name of the last, and whether it is told that no more will come."""

    name: bytes
    blocks: int = 0
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class _Ready:
    """No blocks: no more will come of this export."""

    export_id: str
    blocks: tuple[int, ...]
    names: tuple[int, ...]


class HandingOver:
    def __init__(self, pool: BlockPool, keeps_content: Callable[[int], bool], transfers: Transfers, identity: Identity):
        """keeps_content(block): whether a block that is held no more can still be found. identity: by which blocks are
        named."""
        self._pool, self._keeps_content, self._transfers, self._identity = pool, keeps_content, transfers, identity
        self._given: dict[int, _Given] = {}  # by number of the sequence
        self._ready: list[_Ready] = []  # for the next plan; until then its blocks are held here

    @property
    def held(self) -> list[int]:
        """Blocks that the next plan hands over; once for each time that they are held."""
        return [block for one in self._ready for block in one.blocks]

    @property
    def waiting(self) -> bool:
        """Whether the next plan has something to hand over."""
        return bool(self._ready)

    def computed(self, sequence: Sequence, tokens: int, block_size: int) -> None:
        """So many leading tokens of a sequence that runs have keys and values, in its blocks."""
        request = sequence.request
        if request.handover is None or not request.handover.give or sequence.sample_index:
            return
        given = self._given.get(sequence.number)
        if given is None:
            root = SharedRoot(request.cache_salt, request.adapter)
            given = self._given[sequence.number] = _Given(root_name(root, self._identity(request.adapter)))
        last = handed_blocks(request, block_size)
        whole = min(tokens // block_size, last)
        names = []
        for start in range(given.blocks * block_size, whole * block_size, block_size):
            given.name = next_name(given.name, request.prompt_token_ids[start : start + block_size])
            names.append(int.from_bytes(given.name))
        if names:
            self._give(request.handover.give, tuple(sequence.blocks[given.blocks : whole]), tuple(names))
            given.blocks = whole
        if given.blocks == last and not given.is_whole:
            self._give(request.handover.give, (), ())
            given.is_whole = True

    def ended(self, sequence: Sequence) -> None:
        """No more will come; whoever waits for more is told so."""
        given = self._given.pop(sequence.number, None)
        if given is not None and not given.is_whole:
            assert sequence.request.handover is not None
            self._give(sequence.request.handover.give, (), ())

    def begin(self) -> None:
        """With the plan under construction, before it takes a block."""
        ready, self._ready = self._ready, []
        for one in ready:
            self._transfers.begin("send", giving_place(one.export_id), one.blocks, one.names, lambda done: None)
            self._pool.release(reversed(one.blocks), self._keeps_content)  # the ticket has its own references

    def _give(self, export_id: str, blocks: tuple[int, ...], names: tuple[int, ...]) -> None:
        for block in blocks:
            self._pool.acquire(block)
        self._ready.append(_Ready(export_id, blocks, names))
