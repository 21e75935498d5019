"""The waiting queue: sequences without a row, in the order of their policy.

Within a group the order is a heap of the ranks that sequences had when they began to wait. The next group is chosen
anew each time: among all groups, by the policy's rank of the group or of its first sequence (`reranks_heads`), or,
where the policy says that ranks of groups only rise, among the first (`GroupOrder`).
For policies whose ranks change (`window`), the first sequences by arrival are ranked again for each step.

Some sequences count as waiting, but are not in the order: the further samples of a prompt, until the first has computed
it, so that they find its blocks; and deferred ones, whose adapter or prefix is being loaded.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator
from collections.abc import Sequence as Sequences
from typing import Any

from inflight.core.policies import Ordered, Policy, Rank
from inflight.core.request_timings import StepTime
from inflight.core.sequence import Sequence, SequenceView
from inflight.core.tenants import Backlog

Key = tuple[Any, ...]
Entry = tuple[Rank, int, int, Sequence]  # rank, number, seq; ties never reach the sequence


class GroupOrder:
    """The order of groups whose ranks only rise.

    A heap has for each group its key when it was last read. Since keys rise, that is a lower bound, and only the keys
    at the top are read again: a choice takes a time that grows with the groups that were served since the last one, and
    not with those that wait. A key may fall when a sequence of the group comes, leaves or ends: then `changed` is
    called.
    """

    def __init__(self, key: Callable[[Hashable], Key | None]):
        """Start without groups.

        Args:
            key: Returns the present key of a group, unique among the groups; None where none of its sequences wait.
        """
        self._key = key
        self._heap: list[tuple[Key, int, Hashable]] = []
        self._valid: dict[Hashable, tuple[Key, int]] = {}  # the entry of each group that counts; others are passed over
        self._seq = itertools.count()

    def changed(self, group: Hashable) -> None:
        """Take note that the key of a group may have fallen."""
        key, known = self._key(group), self._valid.get(group)
        if key is None:
            self._valid.pop(group, None)
        elif known is None or key < known[0]:
            self._push(group, key)

    def first(self) -> Hashable | None:
        """Return the group with the least key; None where there is none."""
        while self._heap:
            old, seq, group = self._heap[0]
            if self._valid.get(group) != (old, seq):
                heapq.heappop(self._heap)
                continue
            key = self._key(group)
            if key == old:
                return group
            heapq.heappop(self._heap)
            del self._valid[group]
            if key is not None:
                self._push(group, key)
        return None

    def clear(self) -> None:
        self._heap.clear()
        self._valid.clear()

    def _push(self, group: Hashable, key: Key) -> None:
        entry = key, next(self._seq)
        self._valid[group] = entry
        heapq.heappush(self._heap, (*entry, group))


class PolicyOrder:
    """Sequences that may be served, in the order of a policy: a heap of each group."""

    def __init__(self, policy: Policy, cached_tokens: Callable[[Sequence], int], time: StepTime):
        """Start without any. cached_tokens: returns how much of a sequence's prompt the prefix cache holds now."""
        self._policy, self._cached_tokens, self._time = policy, cached_tokens, time
        self._heaps: dict[Hashable, list[Entry]] = {}
        self._late: list[Entry] = []  # heap, by arrival: of those that come after all others
        self._inside: dict[int, int] = {}  # by number: seq of its valid entry; others are stale and skipped
        self._seq = itertools.count()
        self._groups = GroupOrder(self._key) if policy.group_ranks_rise else None

    def clear(self) -> None:
        self._heaps.clear()
        self._late.clear()
        self._inside.clear()
        if self._groups is not None:
            self._groups.clear()

    def __len__(self) -> int:
        return len(self._inside)

    def __contains__(self, number: int) -> bool:
        return number in self._inside

    def rank(self, sequence: Sequence) -> tuple[Rank, int]:
        """Return the rank of a sequence, waiting or running, in a total order."""
        return self._policy.rank(SequenceView(sequence), self._time.now), sequence.number

    def push(self, sequence: Sequence) -> None:
        view = SequenceView(sequence)
        # Where ranks change, the heap keeps the order of arrival, and a choice looks closer.
        rank = (view.arrival,) if self._policy.window else self._policy.rank(view, self._time.now)
        group = self._policy.group(view)
        seq = self._inside[sequence.number] = next(self._seq)
        heapq.heappush(self._heaps.setdefault(group, []), (rank, sequence.number, seq, sequence))
        if self._groups is not None:
            self._groups.changed(group)

    def move_behind(self, sequence: Sequence) -> None:
        """Have a sequence that may be served come after all others, until it is pushed again."""
        seq = self._inside[sequence.number] = next(self._seq)
        heapq.heappush(self._late, ((sequence.request.arrival,), sequence.number, seq, sequence))

    def first_late(self) -> Sequence | None:
        """Return the sequence that is served first of those behind all others."""
        while self._late and not self._is_valid(self._late[0]):
            heapq.heappop(self._late)
        return self._late[0][3] if self._late else None

    def discard(self, sequence: Sequence) -> None:
        """Remove a sequence, if it is there; its entry is stale."""
        self._inside.pop(sequence.number, None)

    def drop_stale(self, sequence: Sequence) -> None:
        """Drop stale entries at the head of a sequence's group."""
        self._valid_heap(self._policy.group(SequenceView(sequence)))

    def changed(self, sequence: Sequence) -> None:
        """Take note that the rank of a sequence's group may have fallen."""
        if self._groups is not None:
            self._groups.changed(self._policy.group(SequenceView(sequence)))

    def __iter__(self) -> Iterator[Sequence]:
        """Yield sequences, best first. The next one comes once the last was removed."""
        if self._policy.window:
            yield from self._ranked_anew()
        else:
            while (heap := self._next_heap()) is not None:
                yield heap[0][3]
        while (late := self.first_late()) is not None:
            yield late

    def entries(self) -> Iterator[Entry]:
        """Return the entries of all sequences, in no order."""
        return itertools.chain(*self.parts())

    def parts(self) -> tuple[Iterator[Entry], Iterator[Entry]]:
        """Return the entries of those in their turn, and of those behind all others, each in no order."""
        in_turn = (entry for heap in self._heaps.values() for entry in heap if self._is_valid(entry))
        return in_turn, (entry for entry in self._late if self._is_valid(entry))

    def first(self, count: int) -> list[Sequence]:
        """Return some sequences, the next of each group first; in a time that does not grow with how many wait."""
        found: list[Sequence] = []
        for heap in self._heaps.values():
            head = (entry for entry in itertools.islice(heap, 2 * count) if self._is_valid(entry))
            found += (entry[3] for entry in itertools.islice(head, count - len(found)))
            if len(found) == count:
                break
        return found

    def _is_valid(self, entry: Entry) -> bool:
        return self._inside.get(entry[1]) == entry[2]

    def _next_heap(self) -> list[Entry] | None:
        """Return the heap of the group that is served next, its head valid."""
        if self._groups is not None:
            first = self._groups.first()
            return None if first is None else self._heaps[first]
        if len(self._heaps) == 1:  # as under policies without groups
            return self._valid_heap(next(iter(self._heaps)))
        heaps = {group: heap for group in list(self._heaps) if (heap := self._valid_heap(group)) is not None}
        if len(heaps) <= 1:
            return next(iter(heaps.values()), None)
        if self._policy.reranks_heads:
            return min(heaps.values(), key=lambda heap: self._rank_anew(heap[0][3]))
        now = self._time.now
        return heaps[min(heaps, key=lambda group: (self._policy.group_rank(group, now), heaps[group][0][:2]))]

    def _valid_heap(self, group: Hashable) -> list[Entry] | None:
        """Return the heap of a group, its head valid; None where none of its sequences may be served."""
        heap = self._heaps.get(group)
        while heap and not self._is_valid(heap[0]):
            heapq.heappop(heap)
        if not heap:
            self._heaps.pop(group, None)
        return heap or None

    def _key(self, group: Hashable) -> tuple[Rank, Rank, int] | None:
        """Return the key that orders groups; None where none of its sequences may be served."""
        heap = self._valid_heap(group)
        return None if heap is None else (self._policy.group_rank(group, self._time.now), *heap[0][:2])

    def _ranked_anew(self) -> Iterator[Sequence]:
        self._next_heap()  # drops what is stale at the heads
        first = [entry[3] for entry in heapq.nsmallest(self._policy.window, self.parts()[0])]
        yield from sorted(first, key=self._rank_anew)

    def _rank_anew(self, sequence: Sequence) -> tuple[Rank, int]:
        sequence.cached_hint = self._cached_tokens(sequence)
        return self.rank(sequence)


class WaitingQueue:
    def __init__(self, policy: Policy, cached_tokens: Callable[[Sequence], int], time: StepTime):
        """Create an empty queue. cached_tokens: returns how much of a sequence's prompt the prefix cache holds now."""
        self.policy = policy
        self.counts = _overrides(policy, "served")  # whether the policy counts served tokens
        self.preempts = _overrides(policy, "may_preempt")  # whether it allows preemption
        self._order = PolicyOrder(policy, cached_tokens, time)
        self._held: dict[int, list[Sequence]] = {}  # first sample's number → its siblings
        self._deferred: dict[int, tuple[Sequence, str]] = {}  # by number; reason
        self._counted: dict[int, int] = {}  # by number: tokens that a sequence of these was counted with, but siblings
        self.backlog = Backlog()
        self.rank = self._order.rank
        self.in_order = self._order.__iter__
        self.first = self._order.first
        self.move_behind = self._order.move_behind
        self.first_late = self._order.first_late

    def clear(self) -> None:
        """Remove all sequences."""
        self._order.clear()
        self._held.clear()
        self._deferred.clear()
        self._counted.clear()
        self.backlog = Backlog()

    def __len__(self) -> int:
        return self.backlog.total.sequences

    @property
    def ready(self) -> int:
        """Number of sequences that may be served."""
        return len(self._order)

    def push(self, sequence: Sequence) -> None:
        """Add a sequence, or put a deferred one back into the order."""
        self._forget(sequence)
        self._order.push(sequence)
        self._count(sequence)

    def deferred(self, reason: str) -> int:
        """Return the number of sequences that are deferred for this reason."""
        return sum(one[1] == reason for one in self._deferred.values())

    def defer(self, sequence: Sequence, reason: str) -> None:
        """Take a sequence out of the order until it is pushed."""
        self._forget(sequence)
        self._deferred[sequence.number] = sequence, reason
        self._count(sequence)

    def deferred_for(self, sequence: Sequence) -> str | None:
        """Return the reason that a sequence is deferred for; None: it is not."""
        found = self._deferred.get(sequence.number)
        return None if found is None else found[1]

    def is_ready(self, sequence: Sequence) -> bool:
        """Return whether a sequence may be served."""
        return sequence.number in self._order

    def waits(self, sequence: Sequence) -> bool:
        """Return whether a sequence may be served or is deferred; not whether it waits for the first sample."""
        return sequence.number in self._counted

    def everyone(self) -> list[Sequence]:
        """Return all sequences, also those that may not be served yet, in no order."""
        ready = (entry[3] for entry in self._order.entries())
        deferred = (one[0] for one in self._deferred.values())
        return [*ready, *deferred, *itertools.chain.from_iterable(self._held.values())]

    def views(self) -> list[SequenceView]:
        """Return all sequences that may be served, by the rank that they had when they were added."""
        return [SequenceView(entry[3]) for entries in self._order.parts() for entry in sorted(entries)]

    def select(self, numbers: Iterable[int]) -> list[Sequence]:
        """Return the sequences with these numbers, in that order; others are passed over."""
        found = {entry[1]: entry[3] for entry in self._order.entries()}
        return [found[number] for number in numbers if number in found]

    def take(self, sequence: Sequence) -> None:
        """Remove a sequence that is served; its siblings still wait for it."""
        self._forget(sequence)
        self._order.drop_stale(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that has ended, and its siblings; harmless if it does not wait."""
        self._forget(sequence)
        self._take_held(sequence)
        self._order.changed(sequence)

    def defer_siblings(self, leader: Sequence, siblings: Sequences[Sequence]) -> None:
        """Hold samples back behind the first one of their prompt, wherever they wait now."""
        for sibling in siblings:
            self._forget(sibling)
        self._held.setdefault(leader.number, []).extend(siblings)
        self.backlog.add(leader.request.tenant, len(siblings), 0)

    def siblings(self, leader: Sequence) -> list[Sequence]:
        """Return the samples that wait for the leader's prompt."""
        return self._held.get(leader.number, [])

    def release_siblings(self, leader: Sequence) -> None:
        """Put the siblings of a leader into the order: its prompt is computed, or planned."""
        for sibling in self._take_held(leader):
            self.push(sibling)

    def _take_held(self, leader: Sequence) -> list[Sequence]:
        siblings = self._held.pop(leader.number, [])
        if siblings:
            self.backlog.remove(leader.request.tenant, len(siblings), 0)
        return siblings

    def _count(self, sequence: Sequence) -> None:
        tokens = self._counted[sequence.number] = _tokens(sequence)
        self.backlog.add(sequence.request.tenant, 1, tokens)

    def _forget(self, sequence: Sequence) -> None:
        """Remove a sequence from the order, or from those that are deferred, if it is there."""
        tokens = self._counted.pop(sequence.number, None)
        if tokens is not None:
            self._order.discard(sequence)
            self._deferred.pop(sequence.number, None)
            self.backlog.remove(sequence.request.tenant, 1, tokens)


def _tokens(sequence: Sequence) -> int:
    """Return the tokens that a sequence counts with: its output, and for the first sample the prompt."""
    return len(sequence.output) + (0 if sequence.sample_index else len(sequence.prompt))


def _overrides(policy: Policy, verb: str) -> bool:
    """Return whether a policy, or the guard of a plugin, has a method of its own; one of `Ordered` is not called."""
    return getattr(getattr(policy, verb), "__func__", None) is not getattr(Ordered, verb)
