"""Handing over: blocks of prompts that are held for other engines, from when they are computed until one has them.

Knows which blocks of whose prompt are told already, and asks for a transfer for those that were computed since: it
holds them whatever becomes of the sequence. What a step is about to compute is told with its plan, and held by the
sequence meanwhile. Does not know who comes for them, nor when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct, field

from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.peer_source import Identity, handed_blocks
from inflight.core.kv.transfers import Transfers
from inflight.core.sequence import Sequence
from inflight.core.types.kv_blocks import SharedRoot, block_hash, root_hash
from inflight.core.types.kv_transfer import export_tier
from inflight.core.types.plan import Chunk, EarlySend


class _Given(Struct):
    """Of one prompt: the name before its first block, those of blocks that are computed or about to be, how many are
    told, and told early, and whether it is told that no more will come."""

    root: bytes
    names: list[bytes] = field(default_factory=list)
    blocks: int = 0
    early: int = 0
    is_whole: bool = False


class _Ready(Struct, frozen=True):
    """No blocks: no more will come of this export."""

    export_id: str
    blocks: tuple[int, ...]
    names: tuple[int, ...]


class HandingOver:
    def __init__(
        self,
        pool: BlockPool,
        keeps_content: Callable[[int], bool],
        transfers: Transfers,
        identity: Identity,
        block_size: int,
    ):
        """keeps_content(block): whether a block that is held no more can still be found. identity: by which blocks are
        named."""
        self._pool, self._keeps_content, self._transfers, self._identity = pool, keeps_content, transfers, identity
        self._size = block_size
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

    def computing(self, chunks: Iterable[Chunk], running: Iterable[Sequence]) -> tuple[EarlySend, ...]:
        """Of the plan under construction, which computes these chunks."""
        giving = {one.number: one for one in running if _export(one)}
        return tuple(
            early
            for chunk in chunks
            if giving and (sequence := giving.get(chunk.sequence_id)) is not None
            if (early := self._early(sequence, chunk.start + chunk.length)) is not None
        )

    def computed(self, sequence: Sequence, tokens: int) -> None:
        """So many leading tokens of a sequence that runs have keys and values, in its blocks."""
        export_id = _export(sequence)
        if not export_id:
            return
        given, whole = self._named(sequence, tokens)
        if whole > given.blocks:
            self._give(
                export_id, tuple(sequence.blocks[given.blocks : whole]), _numbers(given.names[given.blocks : whole])
            )
            given.blocks = whole
        if given.blocks == handed_blocks(sequence.request, self._size) and not given.is_whole:
            self._give(export_id, (), ())
            given.is_whole = True

    def ended(self, sequence: Sequence) -> None:
        """No more will come; whoever waits for more is told so."""
        given = self._given.pop(sequence.number, None)
        if given is not None and not given.is_whole:
            assert sequence.request.kv_transfer is not None
            self._give(sequence.request.kv_transfer.give, (), ())

    def begin(self) -> None:
        """With the plan under construction, before it takes a block."""
        ready, self._ready = self._ready, []
        for one in ready:
            self._transfers.begin("send", export_tier(one.export_id), one.blocks, one.names, lambda done: None)
            self._pool.release(reversed(one.blocks), self._keeps_content)  # the transfer has its own references

    def _early(self, sequence: Sequence, tokens: int) -> EarlySend | None:
        """None: no block that is handed over becomes whole."""
        given, whole = self._named(sequence, tokens)
        first, given.early = max(given.blocks, given.early), max(whole, given.early)
        if whole <= first:
            return None
        names = _numbers(given.names[first:whole])
        return EarlySend(export_tier(_export(sequence)), tuple(sequence.blocks[first:whole]), names)

    def _named(self, sequence: Sequence, tokens: int) -> tuple[_Given, int]:
        """What is told of a prompt, and how many blocks of it these tokens make whole; all of them have names."""
        request, block_size = sequence.request, self._size
        given = self._given.get(sequence.number)
        if given is None:
            root = SharedRoot(request.cache_salt, request.adapter)
            given = self._given[sequence.number] = _Given(root_hash(root, self._identity(request.adapter)))
        whole = min(tokens // block_size, handed_blocks(request, block_size))
        for start in range(len(given.names) * block_size, whole * block_size, block_size):
            before = given.names[-1] if given.names else given.root
            given.names.append(block_hash(before, request.prompt_token_ids[start : start + block_size]))
        return given, whole

    def _give(self, export_id: str, blocks: tuple[int, ...], names: tuple[int, ...]) -> None:
        for block in blocks:
            self._pool.acquire(block)
        self._ready.append(_Ready(export_id, blocks, names))


def _export(sequence: Sequence) -> str:
    """The id under which its blocks are given; empty: they are not, or by the first sample of its request."""
    handover = sequence.request.kv_transfer
    return "" if handover is None or sequence.sample_index else handover.give


def _numbers(names: Iterable[bytes]) -> tuple[int, ...]:
    return tuple(int.from_bytes(name) for name in names)
