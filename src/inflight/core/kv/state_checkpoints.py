"""State checkpoints: copies of a model's recurrent state at a block's end, from which other sequences begin.

Recurrent layers have no blocks: a sequence can begin behind cached blocks only where a checkpoint of all those layers'
states is found by the node of the last of these blocks, and computes the rest again. A step writes its checkpoints in
its pass, and rows begin before the pass: a checkpoint is found from the next plan on, where blocks are found at once.
At depth 2 one may be taken behind a token that is still being sampled; it is found once its block is published.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Sequences
from enum import IntEnum

from inflight.core.kv.checkpoint_spacing import CheckpointSpacing
from inflight.core.kv.prefix_cache import CachedBlock
from inflight.core.sequence import Sequence, StateProgress

NO_NODE = -1  # instead of a node that was dropped
NO_TAKER = -1  # of a slot whose content was loaded

Positions = tuple[tuple[int, int], ...]  # (position, slot), rising
Elsewhere = Callable[[int, int], bool]  # (index of a block, group): whether a source has what the group keeps there
NOWHERE: Elsewhere = lambda index, group: False  # noqa: E731


class CheckpointKind(IntEnum):
    """Kinds of checkpoints, by rising value."""

    MARK = 0
    NEW = 1
    SHARED = 2


class CheckpointSlots:
    """The executor's slots for checkpoints.

    A slot is free; taken (being written, or for tokens that are not all known); cached (found by its node); or only
    held (its node was dropped, and a row has still to begin from it).

    Slots are few and large, so they are evicted by value: first marks that no row has begun from, then new checkpoints,
    then shared ones, the oldest (of the shared ones, the least recently used) of each kind first. A checkpoint is
    shared once rows have begun from it three times: each turn of a conversation uses the checkpoint of the turn before
    once, which says nothing of a second use. At most half of all slots are shared ones; the others count as new again,
    so that no checkpoint stays for its past alone (a segmented LRU).
    """

    def __init__(self, count: int):
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._by_node: dict[int, int] = {}  # node → slot
        self._nodes: dict[int, int] = {}  # slot → node
        self._cached: tuple[OrderedDict[int, None], ...] = tuple(OrderedDict() for _ in CheckpointKind)
        self._kinds = [CheckpointKind.NEW] * count
        self._takers: dict[int, int] = {}  # slot → number of the sequence that took it
        self._holders = [0] * count
        self._uses = [0] * count  # rows that began from its content
        self._planned: dict[int, int | None] = {}  # slots that the plan under construction writes → node, once known

    @property
    def used(self) -> int:
        """Slots that are not free."""
        return self.count - len(self._free)

    def find(self, node: int) -> int | None:
        """Return the slot of a node's checkpoint, if the plan that writes it is complete."""
        return self._by_node.get(node)

    @property
    def coming(self) -> set[int]:
        """Nodes whose checkpoints the plan under construction writes."""
        return {node for node in self._planned.values() if node is not None}

    def hold(self, slot: int) -> None:
        """Keep the content of a slot until `release`."""
        self._holders[slot] += 1

    def acquire(self, slot: int) -> None:
        """Hold a slot that a row will begin from, and raise its value."""
        self.hold(slot)
        self._uses[slot] += 1
        if self._uses[slot] > 2:
            self.promote(slot)
        elif self._uses[slot] == 2 or self._kinds[slot] is CheckpointKind.MARK:
            self._set_kind(slot, CheckpointKind.NEW)

    def count_miss(self, slot: int) -> None:
        """Count a use of a taken slot: a row would have begun from it, had it been there."""
        self._uses[slot] += 1

    def release(self, slot: int) -> None:
        """Release a slot that a row has begun from, or no longer will, or whose transfer has ended."""
        self._holders[slot] -= 1
        if not self._holders[slot] and slot not in self._nodes and slot not in self._planned:
            self._free.append(slot)

    def promote(self, slot: int) -> None:
        """Make a checkpoint a shared one."""
        self._set_kind(slot, CheckpointKind.SHARED)
        shared = self._cached[CheckpointKind.SHARED]
        if len(shared) > max(1, self.count // 2):
            self._set_kind(next(iter(shared)), CheckpointKind.NEW)

    def take_free(self, taker: int, kind: CheckpointKind) -> int | None:
        """Take a free slot for the plan under construction to write. taker: number of the sequence."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._kinds[slot], self._takers[slot], self._planned[slot] = kind, taker, None
        self._uses[slot] = 0
        return slot

    def take(self, taker: int, kind: CheckpointKind) -> int | None:
        """Take a slot, evicting the checkpoint of least value if need be; a mark evicts no shared one. None: all are
        held or being written."""
        if not self._free:
            for cached in self._cached if kind is not CheckpointKind.MARK else self._cached[: CheckpointKind.SHARED]:
                slot = next((slot for slot in cached if not self._holders[slot]), None)
                if slot is not None:
                    self.drop(self._nodes[slot])
                    break
        return self.take_free(taker, kind)

    @property
    def has_room(self) -> bool:
        """Whether `take` finds a slot."""
        return bool(self._free) or any(not self._holders[slot] for slot in self._nodes)

    def take_to_load(self) -> int | None:
        """Take a slot for a checkpoint that is loaded; None: as `take`. The transfer holds it, and frees it if it is
        not published."""
        slot = self.take(NO_TAKER, CheckpointKind.NEW)
        if slot is not None:
            del self._planned[slot]  # it is written beside the steps
        return slot

    def publish_loaded(self, slot: int, node: int) -> None:
        """Make a loaded checkpoint findable, unless its node has one by now."""
        if node not in self._by_node:
            self._add(slot, node)

    def replace(self, slot: int, taker: int, kind: CheckpointKind) -> None:
        """Free a slot that this sequence took, if it still is of this kind and no row has begun from it."""
        if self.is_of(slot, taker) and self._kinds[slot] is kind and not self._uses[slot]:
            self.drop(self._nodes[slot])

    def is_mark(self, slot: int) -> bool:
        """Return whether a slot was taken for a mark within a prompt, and no row has begun from it."""
        return self._kinds[slot] is CheckpointKind.MARK

    def node_of(self, slot: int) -> int:
        return self._nodes[slot]

    def is_of(self, slot: int, taker: int) -> bool:
        """Return whether a slot is cached, with what this sequence took it for."""
        return slot in self._nodes and self._takers.get(slot) == taker

    def publish(self, slot: int, node: int) -> None:
        """Make a taken slot findable by its node, from the next plan on: all its tokens are known."""
        if slot in self._planned:
            self._planned[slot] = node
        else:
            self._add(slot, node)

    def free(self, slot: int) -> None:
        """Free a taken slot whose content will not be findable, once it is not held."""
        self._takers.pop(slot, None)
        if not self._holders[slot]:
            self._free.append(slot)

    def finish_plan(self) -> None:
        """Make the checkpoints of the plan under construction findable."""
        planned, self._planned = self._planned, {}
        for slot, node in planned.items():
            if node is not None:
                self._add(slot, node)

    def drop(self, node: int) -> None:
        """Forget the checkpoint of a node, if it has one."""
        slot = self._by_node.pop(node, None)
        if slot is not None:
            del self._nodes[slot]
            self._takers.pop(slot, None)
            self._cached[self._kinds[slot]].pop(slot)
            if not self._holders[slot]:
                self._free.append(slot)
        for planned, its_node in self._planned.items():
            if its_node == node:
                self._planned[planned] = NO_NODE

    def drop_all(self) -> None:
        for node in tuple(self._by_node):
            self.drop(node)

    def _add(self, slot: int, node: int) -> None:
        if node == NO_NODE or node in self._by_node:  # a node has one checkpoint
            self.free(slot)
            return
        self._by_node[node], self._nodes[slot] = slot, node
        self._cached[self._kinds[slot]][slot] = None

    def _set_kind(self, slot: int, kind: CheckpointKind) -> None:
        """Make a cached slot the most recently used one of a kind."""
        self._cached[self._kinds[slot]].pop(slot)
        self._kinds[slot] = kind
        self._cached[kind][slot] = None


class StateCheckpoints:
    """Checkpoints that sequences take on their way, and begin from."""

    def __init__(
        self,
        slots: CheckpointSlots,
        block_size: int,
        spacing: CheckpointSpacing,
        state_group: int = 1,
        has_exporter: bool = False,
        on_publish: Callable[[int], None] = lambda node: None,
        on_store: Callable[[int], None] = lambda node: None,
    ):
        """Create it without checkpoints.

        Args:
            slots: Slots of the executor, all of them free.
            block_size: Tokens of a block.
            spacing: Where checkpoints are taken.
            state_group: Number of the recurrent state among groups, as in `Transfer`.
            has_exporter: Whether prompts are exported to peers, which begin from a checkpoint.
            on_publish: Called with the node of each checkpoint that a plan writes.
            on_store: Called with the node of each checkpoint that is worth keeping beyond the device: those of prompts'
                ends and branches, and the last one of an answer.
        """
        self.slots = slots
        self._state_group, self._has_exporter = state_group, has_exporter
        self._on_publish, self._on_store = on_publish, on_store
        self.hits = 0  # rows that began from a checkpoint
        self.missed_tokens = 0  # computed again, though their blocks were cached, for want of a checkpoint
        self._size = block_size
        self._spacing = spacing
        self._beginning: list[int] = []  # slots that rows of the plan under construction begin from

    def longest(self, blocks: Sequences[CachedBlock], limit: int, elsewhere: Elsewhere = NOWHERE) -> int:
        """Return how many leading blocks, at most `limit`, end at a checkpoint, which is here or elsewhere."""
        find, held = self.slots.find, len(blocks)
        for length in range(limit, 0, -1):
            if length <= held and find(blocks[length - 1].node) is not None:
                return length
            if elsewhere(length - 1, self._state_group):
                return length
        return 0

    def is_coming(self, blocks: Sequences[CachedBlock]) -> bool:
        """Return whether the plan under construction writes a checkpoint behind one of these blocks."""
        coming = self.slots.coming
        return bool(coming) and any(cached.node in coming for cached in blocks)

    def admit(self, sequence: Sequence, blocks: Sequences[CachedBlock], hits: int) -> None:
        """Hold the checkpoint that a sequence will begin from.

        Args:
            sequence: Its `num_computed` is set. State that came with its request is in its row already: then there is
                no checkpoint to hold.
            blocks: Its cached blocks.
            hits: How many of them it begins behind.
        """
        slot = self.slots.find(blocks[hits - 1].node) if hits * self._size == sequence.num_computed > 0 else None
        branch = len(blocks) * self._size
        sequence.state = StateProgress(-1 if slot is None else slot, sequence.num_computed, branch)
        if slot is not None:
            self.slots.acquire(slot)
        if self._has_exporter and 0 < (last := self._export_end(sequence) // self._size) <= hits:
            self._hold_exported(sequence, self.slots.find(blocks[last - 1].node))

    def begin_from_checkpoint(self, sequence: Sequence) -> int:
        """Return the slot that a sequence's row begins from in the plan under construction; -1: none."""
        state = _progress(sequence)
        slot, state.begins_from = state.begins_from, -1
        self.missed_tokens += max(0, state.branch - sequence.num_computed)
        if slot >= 0:
            self.hits += 1
            self._beginning.append(slot)
        return slot

    def take_checkpoints(self, sequence: Sequence, end: int) -> Positions:
        """Take slots for the checkpoints of a sequence's next chunk, which ends at `end`; return `Chunk.snapshots`."""
        state, start, known = _progress(sequence), sequence.num_computed, sequence.num_tokens
        number, size, spacing = sequence.number, self._size, self._spacing
        if start >= (known - 1) // size * size:
            at = spacing.decoded(state.newest, len(sequence.prompt), start, end, size)
            if at is None:
                return ()
            if state.newest_is_decoded:
                self.slots.replace(state.newest_slot, number, CheckpointKind.NEW)
            taken = self._taken(state, [(at, self.slots.take(number, CheckpointKind.NEW))])
            state.newest_is_decoded = bool(taken) or state.newest_is_decoded
            return taken
        ends = spacing.ends(known, state.branch, state.newest, start, size, bool(sequence.export_id))
        marks = spacing.marks(ends, known, state.newest, start, end, size)
        taken_ends = [(at, self.slots.take(number, CheckpointKind.NEW)) for at in ends if at <= end]
        for at, slot in taken_ends:
            if at == state.branch and slot is not None:
                self.slots.count_miss(slot)
        found = taken_ends + self._take_marks(sequence, marks)
        late = spacing.late_mark(ends, known, state.newest, start, end, size)
        if late is not None:
            found.append((late, self.slots.take_free(number, CheckpointKind.MARK)))
        return self._taken(state, found)

    def publish(self, sequence: Sequence, position: int, node: int) -> None:
        """Make a sequence's checkpoint at a position findable by the node of the block that ends there."""
        unpublished, slot = _progress(sequence).unpublished, None
        if unpublished and unpublished[0][0] == position:
            slot = unpublished.pop(0)[1]
        if self._has_exporter and position == self._export_end(sequence):
            self._hold_exported(sequence, self.slots.find(node) if slot is None else slot)
        if slot is not None:
            self.slots.publish(slot, node)
            self._on_publish(node)
            is_of_answer = position > len(sequence.prompt)
            if not is_of_answer and not self.slots.is_mark(slot):
                self._on_store(node)

    def publish_checkpoints(self) -> None:
        """Make the checkpoints of the plan under construction findable for the next one."""
        for slot in self._beginning:
            self.slots.release(slot)
        self._beginning.clear()
        self.slots.finish_plan()

    def leave(self, sequence: Sequence, comes_back: bool) -> None:
        """Release the slots of a sequence that leaves its row. comes_back: its newest checkpoint is worth more."""
        state = _progress(sequence)
        if state.begins_from >= 0:
            self.slots.release(state.begins_from)
        for _, slot in state.unpublished:
            self.slots.free(slot)
        self.release_exported(sequence)
        if self.slots.is_of(state.newest_slot, sequence.number):
            if comes_back:
                self.slots.promote(state.newest_slot)
            elif state.newest_is_decoded:
                self._on_store(self.slots.node_of(state.newest_slot))
        sequence.state = None

    def release_exported(self, sequence: Sequence) -> None:
        """Release the checkpoint at the end of a sequence's export, which needs it no longer."""
        state = sequence.state
        if state is not None and state.exported >= 0:
            self.slots.release(state.exported)
            state.exported = -1

    def _export_end(self, sequence: Sequence) -> int:
        """Return the position at which a peer begins behind a sequence's export; 0: it exports nothing."""
        return self._spacing.last_boundary(len(sequence.prompt), self._size) if sequence.export_id else 0

    def _hold_exported(self, sequence: Sequence, slot: int | None) -> None:
        """Hold the checkpoint that a sequence exports once the plan under construction is computed. Plans behind that
        one may fail: none of them writes to the slot meanwhile."""
        self.release_exported(sequence)
        if slot is not None:
            self.slots.hold(slot)
            _progress(sequence).exported = slot

    def _take_marks(self, sequence: Sequence, marks: list[int]) -> list[tuple[int, int | None]]:
        """Take slots for all marks while there are free ones; otherwise one for the last mark, instead of the
        sequence's own mark before it or of another checkpoint of as little value."""
        found: list[tuple[int, int | None]] = []
        for at in reversed(marks):
            slot = self.slots.take_free(sequence.number, CheckpointKind.MARK)
            if slot is None and not found:
                self.slots.replace(_progress(sequence).newest_slot, sequence.number, CheckpointKind.MARK)
                slot = self.slots.take(sequence.number, CheckpointKind.MARK)
            if slot is None:
                break
            found.append((at, slot))
        return found

    @staticmethod
    def _taken(state: StateProgress, found: list[tuple[int, int | None]]) -> Positions:
        taken = tuple(sorted((at, slot) for at, slot in found if slot is not None))
        if taken:
            state.newest, state.newest_slot = taken[-1]
            state.newest_is_decoded = False
            state.unpublished += taken
        return taken


def _progress(sequence: Sequence) -> StateProgress:
    assert sequence.state is not None, "it has a row, of a model with recurrent state"
    return sequence.state
