"""KV transfer of prompts between engines: exports computed blocks to peers, and finds what a peer exports.

A transfer holds exported blocks until a peer has pulled them, whatever becomes of the sequence. Blocks that a step is
about to compute are sent with its plan, while the sequence holds them.

A peer begins at the export's end: at a block's end, with a token left to compute. It needs all blocks of the first
group before that, of other groups those that their windows still show there, and the checkpoint of the recurrent state
there. If one of them is gone before it is exported, the export ends without it, and the peer computes the prompt.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Sequences

from msgspec import Struct, field

from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.checkpoint_spacing import CheckpointSpacing
from inflight.core.kv.connector import Fingerprint
from inflight.core.kv.state_checkpoints import StateCheckpoints
from inflight.core.kv.transfers import Transfers
from inflight.core.sequence import Sequence
from inflight.core.types.kv_blocks import KVChain, SharedRoot, block_hash, first_seen, group_hash, root_hash
from inflight.core.types.kv_transfer import export_tier
from inflight.core.types.plan import Capacity, Chunk, EarlySend
from inflight.core.types.request import Request

Unit = tuple[int, int, int]  # index of the block in the prompt, group, and block or slot


class ExportLayout(Struct, frozen=True):
    """Blocks of a prompt that are exported; the same at both peers.

    Attributes:
        block_size: Tokens of a block.
        windows: Of each KV group.
        tail: Tokens at the prompt's end that are not exported: the last, from which the next is sampled, and those that
            no checkpoint includes.
        has_state: Whether a checkpoint is exported.
    """

    block_size: int
    windows: tuple[int, ...] = (0,)
    tail: int = 1
    has_state: bool = False

    @classmethod
    def of(cls, capacity: Capacity, spacing: CheckpointSpacing | None = None) -> ExportLayout:
        """Return the layout of a model. spacing: of its checkpoints; None: the default one."""
        if not capacity.state_snapshots:
            return cls(capacity.block_size, capacity.windows)
        tail = (spacing or CheckpointSpacing()).tail
        return cls(capacity.block_size, capacity.windows, max(1, tail), has_state=True)

    @property
    def state_group(self) -> int:
        """Number of the recurrent state among groups, as in `Transfer`."""
        return len(self.windows)

    def num_blocks(self, request: Request) -> int:
        """Return how many blocks of a prompt are before the export's end."""
        return max(0, len(request.prompt_token_ids) - self.tail) // self.block_size

    def first_block(self, group: int, num_blocks: int) -> int:
        """Return the index of the first block of a group that is exported. num_blocks: before the export's end."""
        return first_seen(num_blocks * self.block_size, self.windows[group]) // self.block_size if group else 0

    def has(self, num_blocks: int, index: int, group: int) -> bool:
        """Return whether an export with so many blocks has what a group keeps at a block."""
        if group == self.state_group:
            return self.has_state and index == num_blocks - 1
        return self.first_block(group, num_blocks) <= index < num_blocks


class PeerSource:
    """The `KVSource` of the peer that a request names. If the peer lacks the blocks the transfer fails, and they are
    computed."""

    def __init__(self, layout: ExportLayout, fingerprint: Fingerprint):
        self._layout, self._fingerprint = layout, fingerprint

    def chain(self, request: Request, root: SharedRoot) -> KVChain | None:
        """Return all exported blocks of the prompt; they are loaded at any cost."""
        if request.kv_transfer is None or request.kv_transfer.take is None:
            return None
        num_blocks, has = self._layout.num_blocks(request), self._layout.has
        hash_before = root_hash(root, self._fingerprint(root.adapter))
        tier = request.kv_transfer.take.tier
        return KVChain("receive", tier, hash_before, lambda index, group, _: has(num_blocks, index, group), always=True)


class _Export(Struct):
    """Export of one prompt.

    Attributes:
        root: Hash before its first block.
        hashes: Of blocks that are computed, or about to be.
        num_sent: Blocks of the prompt that are exported.
        num_sent_early: Blocks that were sent with the plan that computes them, or exported.
        is_complete: Whether the end of the export was sent.
    """

    root: bytes
    hashes: list[bytes] = field(default_factory=list)
    num_sent: int = 0
    num_sent_early: int = 0
    is_complete: bool = False


class _Ready(Struct, frozen=True):
    """Export of the next plan. No blocks: the end of the export. The fields are as in `Transfer`."""

    export_id: str
    blocks: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()
    hashes: tuple[int, ...] = ()

    def units(self) -> list[tuple[int, int]]:
        """Return (group, block) of each block."""
        return list(zip(self.groups, self.blocks, strict=True))


class KVExporter:
    def __init__(
        self,
        pool: BlockPool,
        states: StateCheckpoints,
        transfers: Transfers,
        fingerprint: Fingerprint | None,
        layout: ExportLayout,
    ):
        """Create it without exports.

        Args:
            pool: Of blocks.
            states: Holds the checkpoint that is exported, until it is.
            transfers: Copies the content.
            fingerprint: For the hashes of blocks; None: no block is exported.
            layout: Which blocks are exported.
        """
        self._pool, self._states, self._slots, self._transfers = pool, states, states.slots, transfers
        self._fingerprint, self._layout, self._size = fingerprint, layout, layout.block_size
        self._exports: dict[int, _Export] = {}  # by number of the sequence
        self._ready: list[_Ready] = []  # holds its blocks and checkpoints until the next plan

    @property
    def is_waiting(self) -> bool:
        """Whether the next plan has something to export."""
        return bool(self._ready)

    def early_sends(self, chunks: Iterable[Chunk], running: Iterable[Sequence]) -> tuple[EarlySend, ...]:
        """Return what peers may read of the plan under construction, which computes these chunks."""
        if self._fingerprint is None:
            return ()
        exported = {one.number: one for one in running if one.export_id}
        return tuple(
            early
            for chunk in chunks
            if exported and (sequence := exported.get(chunk.sequence_id)) is not None
            if (early := self._early_send(sequence, chunk.start + chunk.length, self._fingerprint)) is not None
        )

    def chunk_computed(self, sequence: Sequence, end: int) -> None:
        """Export the full blocks of a running sequence, whose first `end` tokens are computed."""
        export_id = sequence.export_id
        if self._fingerprint is None or not export_id:
            return
        export, full = self._hashed(sequence, end, self._fingerprint)
        if export.is_complete:
            self._states.release_exported(sequence)  # of a sequence that was preempted since
            return
        last = self._layout.num_blocks(sequence.request)
        units = self._new_units(sequence, export, full, last)
        if units is not None and full > export.num_sent:
            self._add(export_id, export, units)
            export.num_sent = full
        if units is None or full == last:
            self._ready.append(_Ready(export_id))
            self._states.release_exported(sequence)
            export.is_complete = True

    def first_query(self, sequence: Sequence) -> int:
        """Return the position of the first query to come, of a running sequence or of the peer that imports its prompt.
        The steps that compute the end of an export may still be in flight."""
        if self._fingerprint is None or not sequence.export_id:
            return sequence.num_computed
        export = self._exports.get(sequence.number)
        if export is not None and export.is_complete:
            return sequence.num_computed
        return min(sequence.num_computed, self._layout.num_blocks(sequence.request) * self._size)

    def end(self, sequence: Sequence) -> None:
        """End the export of a sequence that has ended; a peer that waits for more is notified."""
        export = self._exports.pop(sequence.number, None)
        if export is not None and not export.is_complete:
            self._ready.append(_Ready(sequence.export_id))

    def begin_step(self) -> None:
        """Begin the transfers of ready blocks with the plan under construction, before it takes a block."""
        ready, self._ready = self._ready, []
        for one in ready:
            tier = export_tier(one.export_id)
            self._transfers.begin("send", tier, one.blocks, one.hashes, groups=one.groups)
            for group, block in reversed(one.units()):  # the transfer has references of its own
                if group == self._layout.state_group:
                    self._slots.release(block)
                else:
                    self._pool.release((block,))

    def _new_units(self, sequence: Sequence, export: _Export, full: int, last: int) -> list[Unit] | None:
        """Return what a prompt with `full` full blocks adds to its export, the recurrent state last.

        last: Blocks before the export's end. None: part of it is gone, as a block that a window no longer shows."""
        units: list[Unit] = []
        for group, table in enumerate(sequence.block_tables):
            first = max(export.num_sent, self._layout.first_block(group, last))
            if first < min(full, sequence.num_freed_blocks[group]):
                return None
            units += [(index, group, table[index]) for index in range(first, full)]
        if self._layout.has_state and export.num_sent < full == last:
            if sequence.state is None or sequence.state.exported < 0:
                return None
            units.append((last - 1, self._layout.state_group, sequence.state.exported))
        return units

    def _early_send(self, sequence: Sequence, end: int, fingerprint: Fingerprint) -> EarlySend | None:
        """Return the blocks that become full with a chunk up to `end`; None where none does."""
        export, full = self._hashed(sequence, end, fingerprint)
        first = max(export.num_sent, export.num_sent_early, sequence.num_freed_blocks[0])
        export.num_sent_early = max(full, export.num_sent_early)
        if full <= first or export.is_complete:
            return None
        hashes = _numbers(export.hashes[first:full])
        return EarlySend(export_tier(sequence.export_id), tuple(sequence.blocks[first:full]), hashes)

    def _hashed(self, sequence: Sequence, tokens: int, fingerprint: Fingerprint) -> tuple[_Export, int]:
        """Hash the blocks that so many tokens of a prompt fill; return its export and their number."""
        request, size = sequence.request, self._size
        export = self._exports.get(sequence.number)
        if export is None:
            root = SharedRoot(request.cache_salt, request.adapter)
            export = self._exports[sequence.number] = _Export(root_hash(root, fingerprint(request.adapter)))
        full = min(tokens // size, self._layout.num_blocks(request))
        _extend(export.hashes, export.root, request.prompt_token_ids, full, size)
        return export, full

    def _add(self, export_id: str, export: _Export, units: list[Unit]) -> None:
        """Hold units until the next plan, which exports them."""
        numbers: list[int] = []
        for index, group, block in units:
            if group == self._layout.state_group:
                self._slots.hold(block)
            else:
                self._pool.acquire(block)
            of_first = export.hashes[index]
            numbers.append(int.from_bytes(group_hash(of_first, group) if group else of_first))
        _, groups, blocks = zip(*units, strict=True)
        self._ready.append(_Ready(export_id, blocks, groups, tuple(numbers)))


def _extend(hashes: list[bytes], root: bytes, token_ids: Sequences[int], blocks: int, size: int) -> None:
    """Extend the hashes of a chain, which begins at a root, to so many blocks."""
    for start in range(len(hashes) * size, blocks * size, size):
        hashes.append(block_hash(hashes[-1] if hashes else root, token_ids[start : start + size]))


def _numbers(hashes: Iterable[bytes]) -> tuple[int, ...]:
    return tuple(int.from_bytes(one) for one in hashes)
