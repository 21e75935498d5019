"""State slots: who has which of the executor's slots for copies of recurrent state, and which one is given away next.

Knows slots, the prefix cache nodes beside which they are found, and who holds one until its row has begun. Not where
snapshots are taken (`snapshot_spacing`), nor of which sequence (`state_snapshots`). A slot is free; taken (its content
is being written, or stands for tokens that are not all known); kept (found by its node); or held alone (its node is
lost, and a row is still to begin from it).

Slots are few and large, so they are given away by value: first marks on the way through a prompt that no row has begun
from, then what is new, then what is shared, the first that was taken (of what is shared, the least recently used) of
each first. A snapshot is shared once it has been of use to two: each turn of a conversation uses the snapshot of the
turn before once, and has newer ones afterwards, so that one use says nothing of a second. What is shared is half of all
slots at most: more of it counts as new again, so that nothing stays for its past alone (a segmented LRU).
"""

from __future__ import annotations

from collections import OrderedDict
from enum import IntEnum

LOST = -1  # in the place of a node


class Kind(IntEnum):
    """What a snapshot is, by rising value."""

    MARK = 0
    NEW = 1
    SHARED = 2


class StateSlots:
    def __init__(self, count: int):
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._at: dict[int, int] = {}  # node → slot
        self._nodes: dict[int, int] = {}  # slot → node
        self._kept: tuple[OrderedDict[int, None], ...] = tuple(OrderedDict() for _ in Kind)
        self._kinds = [Kind.NEW] * count
        self._takers: dict[int, int] = {}  # slot → number of the sequence that it was taken for
        self._holders = [0] * count
        self._uses = [0] * count  # rows that began from what is in it
        self._in_plan: dict[int, int | None] = {}  # slots that the plan under construction writes → node, once known

    @property
    def used(self) -> int:
        """Slots that are not free."""
        return self.count - len(self._free)

    def find(self, node: int) -> int | None:
        """The slot beside a node. Not before the plan that writes it is complete: rows begin before the pass."""
        return self._at.get(node)

    def is_coming(self, node: int) -> bool:
        """Whether the plan under construction writes the snapshot beside this node."""
        return node in self._in_plan.values()

    def acquire(self, slot: int) -> None:
        """A row will begin from it. A first use makes a mark as good as any, a second one makes it newer, a third shows
        that it is shared."""
        self._holders[slot] += 1
        self._uses[slot] += 1
        if self._uses[slot] > 2:
            self.promote(slot)
        elif self._uses[slot] == 2 or self._kinds[slot] is Kind.MARK:
            self._shelve(slot, Kind.NEW)

    def found_missing(self, slot: int) -> None:
        """Count a use of a taken slot: a row would have begun from it, had it been there."""
        self._uses[slot] += 1

    def release(self, slot: int) -> None:
        """It has begun, or will not."""
        self._holders[slot] -= 1
        if not self._holders[slot] and slot not in self._nodes:
            self._free.append(slot)

    def promote(self, slot: int) -> None:
        """It is shared, or will certainly be of use."""
        self._shelve(slot, Kind.SHARED)
        shared = self._kept[Kind.SHARED]
        if len(shared) > max(1, self.count // 2):
            self._shelve(next(iter(shared)), Kind.NEW)

    def take_free(self, taker: int, kind: Kind) -> int | None:
        """A free slot for the plan under construction to write; taker: a sequence's number."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._kinds[slot], self._takers[slot], self._in_plan[slot] = kind, taker, None
        self._uses[slot] = 0
        return slot

    def take(self, taker: int, kind: Kind) -> int | None:
        """The same, if need be that of the snapshot of least value, which for a mark is none that is shared. None: all
        that may be taken are held or written already."""
        if not self._free:
            for shelf in self._kept if kind is not Kind.MARK else self._kept[: Kind.SHARED]:
                slot = next((slot for slot in shelf if not self._holders[slot]), None)
                if slot is not None:
                    self.drop(self._nodes[slot])
                    break
        return self.take_free(taker, kind)

    def replace(self, slot: int, taker: int, kind: Kind) -> None:
        """Free a slot that was taken for this sequence, if it still is what it was, and no row has begun from it."""
        if self.is_of(slot, taker) and self._kinds[slot] is kind and not self._uses[slot]:
            self.drop(self._nodes[slot])

    def is_of(self, slot: int, taker: int) -> bool:
        """Whether a slot is kept, and still what was taken for this sequence."""
        return slot in self._nodes and self._takers.get(slot) == taker

    def name(self, slot: int, node: int) -> None:
        """All tokens that a taken slot stands for are known: it is found beside the node, from the next plan on."""
        if slot in self._in_plan:
            self._in_plan[slot] = node
        else:
            self._keep(slot, node)

    def give_back(self, slot: int) -> None:
        """A taken slot whose tokens will never be known."""
        self._takers.pop(slot, None)
        self._free.append(slot)

    def settle(self) -> None:
        """The plan under construction is complete."""
        in_plan, self._in_plan = self._in_plan, {}
        for slot, node in in_plan.items():
            if node is not None:
                self._keep(slot, node)

    def drop(self, node: int) -> None:
        """What is beside a node, if anything is, is found no more."""
        slot = self._at.pop(node, None)
        if slot is not None:
            del self._nodes[slot]
            self._takers.pop(slot, None)
            self._kept[self._kinds[slot]].pop(slot)
            if not self._holders[slot]:
                self._free.append(slot)
        for written, its_node in self._in_plan.items():
            if its_node == node:
                self._in_plan[written] = LOST

    def drop_all(self) -> None:
        for node in tuple(self._at):
            self.drop(node)

    def _keep(self, slot: int, node: int) -> None:
        """One snapshot beside a node is enough."""
        if node == LOST or node in self._at:
            self.give_back(slot)
            return
        self._at[node], self._nodes[slot] = slot, node
        self._kept[self._kinds[slot]][slot] = None

    def _shelve(self, slot: int, kind: Kind) -> None:
        """As the most recently used of its kind."""
        self._kept[self._kinds[slot]].pop(slot)
        self._kinds[slot] = kind
        self._kept[kind][slot] = None
