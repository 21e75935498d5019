"""Snapshots of recurrent state: what sequences take on their way, and begin from.

Joins the slots (`state_slots`) and the policy of where to take them (`snapshot_spacing`) with sequences' progress.
Layers of recurrent state keep no blocks: a sequence can go on behind cached blocks only where a copy of all those
layers' states was taken, and that is found beside the node of the block before it. A step that takes a snapshot writes
it in its pass, and rows begin before the pass: so it is found from the next plan on, where blocks are found at once.
At depth 2 it may be taken behind a token that is still being sampled; it has no node then, and is found when `publish`
comes to its block. Knows nothing of blocks' places, and copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence as Sequences

from inflight.core.kv.prefix_cache import CachedBlock
from inflight.core.kv.snapshot_spacing import SnapshotSpacing
from inflight.core.kv.state_slots import Kind, StateSlots
from inflight.core.sequence import Sequence, StateProgress

Snapshots = tuple[tuple[int, int], ...]


class StateSnapshots:
    def __init__(self, slots: int, block_size: int, spacing: SnapshotSpacing):
        self.slots = StateSlots(slots)
        self.hits = 0  # rows that began from a snapshot
        self.missed_tokens = 0  # computed again, though blocks of them were found, for want of one
        self._size = block_size
        self._spacing = spacing
        self._beginning: list[int] = []  # slots that rows of the plan under construction begin from

    def longest(self, places: Sequences[CachedBlock], most: int) -> int:
        """Of these leading blocks of a sequence, `most` at most, the ones behind which it can go on."""
        find = self.slots.find
        return next((length for length in range(most, 0, -1) if find(places[length - 1].node) is not None), 0)

    def is_coming(self, places: Sequences[CachedBlock]) -> bool:
        """Whether the next plan finds a snapshot behind one of these blocks."""
        return any(self.slots.is_coming(place.node) for place in places)

    def admit(self, sequence: Sequence, places: Sequences[CachedBlock], hits: int) -> None:
        """The sequence will begin behind the first `hits` of the blocks found, and holds the snapshot there until its
        row has begun. (State that came with a request lies in its row already: then there is none to hold.)"""
        slot = self.slots.find(places[hits - 1].node) if hits * self._size == sequence.num_computed > 0 else None
        branch = len(places) * self._size
        sequence.state = StateProgress(-1 if slot is None else slot, sequence.num_computed, branch)
        if slot is not None:
            self.slots.acquire(slot)

    def begin_from_checkpoint(self, sequence: Sequence) -> int:
        """Return the slot that a sequence's row begins from in the plan under construction; -1: none."""
        state = _progress(sequence)
        slot, state.begins_from = state.begins_from, -1
        self.missed_tokens += max(0, state.branch - sequence.num_computed)
        if slot >= 0:
            self.hits += 1
            self._beginning.append(slot)
        return slot

    def take_checkpoints(self, sequence: Sequence, end: int) -> Snapshots:
        """Take slots for the checkpoints of a sequence's next chunk, which ends at `end`; return `Chunk.snapshots`."""
        state, start, known = _progress(sequence), sequence.num_computed, sequence.num_tokens
        if start >= (known - 1) // self._size * self._size:
            at = self._spacing.decoded(state.newest, len(sequence.prompt), start, end, self._size)
            if at is None:
                return ()
            if state.newest_is_decoded:
                self.slots.replace(state.newest_slot, sequence.number, Kind.NEW)
            taken = self._taken(sequence, [(at, self.slots.take(sequence.number, Kind.NEW))])
            state.newest_is_decoded = bool(taken) or state.newest_is_decoded
            return taken
        ends = self._spacing.ends(known, state.branch, state.newest, start, self._size)
        marks = self._spacing.marks(ends, known, state.newest, start, end, self._size)
        taken_ends = [(at, self.slots.take(sequence.number, Kind.NEW)) for at in ends if at <= end]
        for at, slot in taken_ends:
            if at == state.branch and slot is not None:
                self.slots.found_missing(slot)
        found = taken_ends + self._take_marks(sequence, marks)
        late = self._spacing.late_mark(ends, known, state.newest, start, end, self._size)
        if late is not None:
            found.append((late, self.slots.take_free(sequence.number, Kind.MARK)))
        return self._taken(sequence, found)

    def name(self, sequence: Sequence, position: int, node: int) -> None:
        """The tokens before a position are known, and this is the node of the last of their blocks."""
        unnamed = _progress(sequence).unnamed
        if unnamed and unnamed[0][0] == position:
            self.slots.name(unnamed.pop(0)[1], node)

    def publish_checkpoints(self) -> None:
        """Make the checkpoints of the plan under construction findable for the next one."""
        for slot in self._beginning:
            self.slots.release(slot)
        self._beginning.clear()
        self.slots.settle()

    def leave(self, sequence: Sequence, comes_back: bool) -> None:
        """It gives up its row. comes_back: it will begin from its newest snapshot, if that is kept so long."""
        state = _progress(sequence)
        if state.begins_from >= 0:
            self.slots.release(state.begins_from)
        for _, slot in state.unnamed:
            self.slots.give_back(slot)
        if comes_back and self.slots.is_of(state.newest_slot, sequence.number):
            self.slots.promote(state.newest_slot)
        sequence.state = None

    def _take_marks(self, sequence: Sequence, marks: list[int]) -> list[tuple[int, int | None]]:
        """All of them while slots are free; otherwise the last, in the place of the sequence's own mark before it, or
        of what is worth as little."""
        found: list[tuple[int, int | None]] = []
        for at in reversed(marks):
            slot = self.slots.take_free(sequence.number, Kind.MARK)
            if slot is None and not found:
                self.slots.replace(_progress(sequence).newest_slot, sequence.number, Kind.MARK)
                slot = self.slots.take(sequence.number, Kind.MARK)
            if slot is None:
                break
            found.append((at, slot))
        return found

    def _taken(self, sequence: Sequence, found: list[tuple[int, int | None]]) -> Snapshots:
        state = _progress(sequence)
        taken = tuple(sorted((at, slot) for at, slot in found if slot is not None))
        if taken:
            state.newest, state.newest_slot = taken[-1]
            state.newest_is_decoded = False
            state.unnamed += taken
        return taken


def _progress(sequence: Sequence) -> StateProgress:
    assert sequence.state is not None, "it has a row, of a model with recurrent state"
    return sequence.state
