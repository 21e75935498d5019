"""KV transfer of prompts between engines: exports computed blocks to peers, and finds what a peer exports.

A transfer holds exported blocks until a peer has fetched them, whatever becomes of the sequence. Blocks that a step is
about to compute are sent with its plan, while the sequence holds them.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Sequences

from msgspec import Struct, field

from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.connector import Fingerprint
from inflight.core.kv.transfers import Transfers
from inflight.core.sequence import Sequence
from inflight.core.types.kv_blocks import KVChain, SharedRoot, block_hash, root_hash
from inflight.core.types.kv_transfer import export_tier
from inflight.core.types.plan import Chunk, EarlySend
from inflight.core.types.request import Request


def exported_blocks(request: Request, block_size: int) -> int:
    """Return how many blocks of a prompt are exported: full ones before its last token, which the next is sampled
    from."""
    return (len(request.prompt_token_ids) - 1) // block_size


class PeerSource:
    """The `KVSource` of the peer that a request names. If the peer lacks the blocks the transfer fails, and they are
    computed."""

    def __init__(self, block_size: int, fingerprint: Fingerprint):
        self._size, self._fingerprint = block_size, fingerprint

    def chain(self, request: Request, root: SharedRoot) -> KVChain | None:
        """Return all exported blocks of the prompt; they are loaded at any cost."""
        if request.kv_transfer is None or request.kv_transfer.take is None:
            return None
        blocks = exported_blocks(request, self._size)
        hash_before = root_hash(root, self._fingerprint(root.adapter))
        tier = request.kv_transfer.take.tier
        return KVChain("receive", tier, hash_before, lambda at, group, _: not group and at < blocks, always=True)


class _Export(Struct):
    """Export of one prompt.

    Attributes:
        root: Hash before its first block.
        hashes: Of blocks that are computed, or about to be.
        num_sent: Blocks that are exported.
        num_sent_early: Blocks that were sent with the plan that computes them, or exported.
        is_complete: Whether the end of the export was sent.
    """

    root: bytes
    hashes: list[bytes] = field(default_factory=list)
    num_sent: int = 0
    num_sent_early: int = 0
    is_complete: bool = False


class _Ready(Struct, frozen=True):
    """Blocks for the next plan to export, and their hashes; no blocks: the end of the export."""

    export_id: str
    blocks: tuple[int, ...]
    hashes: tuple[int, ...]


class KVExporter:
    def __init__(self, pool: BlockPool, transfers: Transfers, fingerprint: Fingerprint | None, block_size: int):
        """Create it without exports. fingerprint: for the hashes of blocks; None: no block is exported."""
        self._pool, self._transfers, self._fingerprint, self._size = pool, transfers, fingerprint, block_size
        self._exports: dict[int, _Export] = {}  # by number of the sequence
        self._ready: list[_Ready] = []  # holds its blocks until the next plan

    @property
    def blocks_held(self) -> list[int]:
        """Blocks that the next plan exports, once for each reference."""
        return [block for one in self._ready for block in one.blocks]

    @property
    def is_waiting(self) -> bool:
        """Whether the next plan has something to export."""
        return bool(self._ready)

    def early_sends(self, chunks: Iterable[Chunk], running: Iterable[Sequence]) -> tuple[EarlySend, ...]:
        """Return what peers may read of the plan under construction, which computes these chunks."""
        if self._fingerprint is None:
            return ()
        exported = {one.number: one for one in running if _export_id(one)}
        return tuple(
            early
            for chunk in chunks
            if exported and (sequence := exported.get(chunk.sequence_id)) is not None
            if (early := self._early_send(sequence, chunk.start + chunk.length, self._fingerprint)) is not None
        )

    def chunk_computed(self, sequence: Sequence, end: int) -> None:
        """Export the full blocks of a running sequence, whose first `end` tokens are computed."""
        export_id = _export_id(sequence)
        if self._fingerprint is None or not export_id:
            return
        export, full = self._hashed(sequence, end, self._fingerprint)
        if full > export.num_sent:
            new = slice(export.num_sent, full)
            self._add(export_id, tuple(sequence.blocks[new]), _numbers(export.hashes[new]))
            export.num_sent = full
        if export.num_sent == exported_blocks(sequence.request, self._size) and not export.is_complete:
            self._add(export_id, (), ())
            export.is_complete = True

    def end(self, sequence: Sequence) -> None:
        """End the export of a sequence that has ended; a peer that waits for more is notified."""
        export = self._exports.pop(sequence.number, None)
        if export is not None and not export.is_complete:
            assert sequence.request.kv_transfer is not None
            self._add(sequence.request.kv_transfer.give, (), ())

    def begin_step(self) -> None:
        """Begin the transfers of ready blocks with the plan under construction, before it takes a block."""
        ready, self._ready = self._ready, []
        for one in ready:
            self._transfers.begin("send", export_tier(one.export_id), one.blocks, one.hashes)
            self._pool.release(reversed(one.blocks))  # the transfer has references of its own

    def _early_send(self, sequence: Sequence, end: int, fingerprint: Fingerprint) -> EarlySend | None:
        """Return the blocks that become full with a chunk up to `end`; None where none does."""
        export, full = self._hashed(sequence, end, fingerprint)
        first = max(export.num_sent, export.num_sent_early)
        export.num_sent_early = max(full, export.num_sent_early)
        if full <= first:
            return None
        hashes = _numbers(export.hashes[first:full])
        return EarlySend(export_tier(_export_id(sequence)), tuple(sequence.blocks[first:full]), hashes)

    def _hashed(self, sequence: Sequence, tokens: int, fingerprint: Fingerprint) -> tuple[_Export, int]:
        """Hash the blocks that so many tokens of a prompt fill; return its export and their number."""
        request, size = sequence.request, self._size
        export = self._exports.get(sequence.number)
        if export is None:
            root = SharedRoot(request.cache_salt, request.adapter)
            export = self._exports[sequence.number] = _Export(root_hash(root, fingerprint(request.adapter)))
        full = min(tokens // size, exported_blocks(request, size))
        _extend(export.hashes, export.root, request.prompt_token_ids, full, size)
        return export, full

    def _add(self, export_id: str, blocks: tuple[int, ...], hashes: tuple[int, ...]) -> None:
        for block in blocks:
            self._pool.acquire(block)
        self._ready.append(_Ready(export_id, blocks, hashes))


def _export_id(sequence: Sequence) -> str:
    """Return the id of a sequence's export; empty: it has none, or the first sample of its request has it."""
    kv_transfer = sequence.request.kv_transfer
    return "" if kv_transfer is None or sequence.sample_index else kv_transfer.give


def _extend(hashes: list[bytes], root: bytes, token_ids: Sequences[int], blocks: int, size: int) -> None:
    """Extend the hashes of a chain, which begins at a root, to so many blocks."""
    for start in range(len(hashes) * size, blocks * size, size):
        hashes.append(block_hash(hashes[-1] if hashes else root, token_ids[start : start + size]))


def _numbers(hashes: Iterable[bytes]) -> tuple[int, ...]:
    return tuple(int.from_bytes(one) for one in hashes)
