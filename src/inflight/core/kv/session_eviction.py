"""Evict the blocks of the session with the least valuable blocks first, ends of texts before their roots.

The value of a session changes when it begins or ends a turn, and when its rest comes to its next bucket of ages
(`SessionTable.advance`): it is ranked anew then and at no other time, so that the order is always that of
the values. That moves O(sessions) pointers of a list; a victim is chosen among tenants.

A block of two sessions is shared (a system prompt): it is evicted after all others, least recently released first, and
so is a block of no session; but first of all if it has not been used for ACTIVE_S seconds, or if shared blocks are more
than SHARED_LIMIT of the idle ones.

A tenant that was active within ACTIVE_S seconds keeps GUARANTEED_SHARE of an equal share of the others, whatever is
sent: tenants with more are evicted first. So neither a flood of texts that never return, nor a tenant that touches its
own again and again, empties the cache for others.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Sequences
from typing import NamedTuple

from inflight.core.kv.block_pool import EvictionOrder
from inflight.core.kv.sessions import Awaits, Session, SessionTable, session_key
from inflight.core.sequence import Sequence

ACTIVE_S = 600.0
GUARANTEED_SHARE, SHARED_LIMIT = 0.5, 0.5
LEFT_PER_FOUND = 2


class _Rank(NamedTuple):
    """seq: unique, so that sessions are never compared."""

    value: float
    seq: int
    session: Session


class _Victim(NamedTuple):
    """The session whose blocks are evicted until one of them is the last, or its tenant has no more than `least`."""

    session: Session
    least: float


class _Counts:
    """Idle blocks by tenant, and of no single session."""

    def __init__(self, by_tenant: Counter[str], shared: int):
        self.by_tenant, self.of_sessions, self.shared = Counter(by_tenant), by_tenant.total(), shared

    def take(self, tenant: str) -> None:
        self.by_tenant[tenant] -= 1
        self.of_sessions -= 1


class SessionEviction(EvictionOrder):
    """An order whose owners are sessions: of the device's blocks, or of the host's."""

    def __init__(self, table: SessionTable):
        self._table = table
        table.watchers.append(self._value_changed)
        self.watchers = list[Callable[[Session], None]]()  # called once an idle block of a session is one no more
        self._owners: dict[int, Session | None] = {}  # of each block's content, held or not; None: shared
        self._idle: dict[Session, OrderedDict[int, None]] = {}  # blocks that no sequence holds
        self._shared: OrderedDict[int, float] = OrderedDict()  # when they were released, oldest first
        self._counts = _Counts(Counter(), 0)
        self._active: OrderedDict[str, float] = OrderedDict()  # when tenants last released blocks, oldest first
        self._ranked: dict[str, list[_Rank]] = {}  # by tenant, least valuable first
        self._rank_of: dict[Session, _Rank] = {}
        self._victim: _Victim | None = None  # as long as nothing else changes
        self._seq = 0

    def __len__(self) -> int:
        return self._counts.of_sessions + len(self._shared)

    def __contains__(self, block: object) -> bool:
        if not isinstance(block, int):
            return False
        owner = self._owners.get(block)
        return block in (self._shared if owner is None else self._idle.get(owner, ()))

    def __iter__(self) -> Iterator[int]:
        counts, shared = _Counts(self._counts.by_tenant, len(self._shared)), list(reversed(self._shared.items()))
        ranks = {tenant: list(reversed(ranked)) for tenant, ranked in self._ranked.items()}  # taken from the end
        left = {session: list(reversed(blocks)) for session, blocks in self._idle.items()}
        victim = self._victim
        while ranks or shared:
            if shared and (not ranks or self._is_excess(shared[-1][1], counts)):
                counts.shared -= 1
                yield shared.pop()[0]
                continue
            if victim is None or counts.by_tenant[victim.session.tenant] <= victim.least:
                victim = self._choose({tenant: ranked[-1] for tenant, ranked in ranks.items()}, counts)
            session = victim.session
            counts.take(session.tenant)
            block = left[session].pop()
            if not left[session]:
                victim = None
                ranks[session.tenant].pop()
                if not ranks[session.tenant]:
                    del ranks[session.tenant]
            yield block

    def add(self, block: int, owner: object) -> None:
        if isinstance(owner, Session):
            self._owners[block] = owner if self._owners.get(block, owner) is owner else None
            self._active[owner.tenant] = self._table.now
            self._active.move_to_end(owner.tenant)
        self._victim = None
        session = self._owners.get(block)
        if session is None:
            self._shared[block] = self._table.now
            self._counts.shared += 1
            return
        self._idle.setdefault(session, OrderedDict())[block] = None
        self._counts.by_tenant[session.tenant] += 1
        self._counts.of_sessions += 1
        session.num_idle_blocks += 1
        if session not in self._rank_of:
            self._rank(session)

    def discard(self, block: int) -> None:
        """Remove a block that is held again; its content keeps its owner."""
        if block in self:
            self._victim = None
            self._take(block)

    def forget(self, block: int) -> None:
        """Forget the owner of a block whose content is replaced."""
        self._owners.pop(block, None)

    def coming(self) -> Iterator[int]:
        self._refresh()
        return iter(self)

    def pop(self) -> int:
        self._refresh()
        counts, victim = self._counts, self._victim
        if self._shared:
            block, released = next(iter(self._shared.items()))
            if not self._ranked or self._is_excess(released, counts):
                self._take(block)
                return block
        if victim is None or counts.by_tenant[victim.session.tenant] <= victim.least:
            victim = self._choose({tenant: ranked[0] for tenant, ranked in self._ranked.items()}, counts)
        session = victim.session
        block = next(iter(self._idle[session]))
        self._take(block)
        self._victim = victim if session in self._idle else None
        return block

    def clear(self) -> None:
        for session, blocks in self._idle.items():
            session.num_idle_blocks -= len(blocks)
        for kept in (self._owners, self._idle, self._shared, self._active, self._ranked, self._rank_of):
            kept.clear()
        self._counts, self._victim = _Counts(Counter(), 0), None

    def owner(self, block: int) -> Session | None:
        """Return the session that owns a block's content; None where it is shared, or of no session yet."""
        return self._owners.get(block)

    def idle_blocks(self, session: Session) -> Iterator[int]:
        """Yield the blocks that are this session's own and that no sequence holds."""
        return iter(self._idle.get(session, ()))

    def num_idle_blocks(self, session: Session) -> int:
        """Return how many blocks `idle_blocks` yields."""
        return len(self._idle.get(session, ()))

    def leave(self, session: Session, found: Sequences[int]) -> None:
        """Evict the blocks first that a session's next turn, which found others, left behind: an answer that was asked
        for anew, or messages that were edited. A turn that left many more than it found began something else, as one of
        a session's several agents does, and nothing changes."""
        left = set(self._idle.get(session, ())).difference(found)
        if len(left) >= LEFT_PER_FOUND * len(found):
            return
        self._victim = None
        for block in [block for block in self._idle.get(session, ()) if block in left]:
            self._take(block)
            self._owners[block], self._shared[block] = None, -math.inf
            self._shared.move_to_end(block, last=False)
            self._counts.shared += 1

    def _is_excess(self, released: float, counts: _Counts) -> bool:
        """Return whether the shared block that was released longest ago, then, is evicted before others."""
        is_stale = released < self._table.now - ACTIVE_S
        return is_stale or counts.shared > SHARED_LIMIT * (counts.shared + counts.of_sessions)

    def _choose(self, heads: dict[str, _Rank], counts: _Counts) -> _Victim:
        """Return the least valuable session, of a tenant above its guarantee if there is one.

        heads: each tenant's least valuable session.
        """
        guaranteed = GUARANTEED_SHARE * counts.of_sessions / max(1, len(self._active))
        least = {tenant: guaranteed if tenant in self._active else 0.0 for tenant in heads}
        tenant = min(heads, key=lambda one: (counts.by_tenant[one] <= least[one], heads[one]))
        is_above = counts.by_tenant[tenant] > least[tenant]
        return _Victim(heads[tenant].session, least[tenant] if is_above else 0.0)

    def _take(self, block: int) -> None:
        owner = self._owners.get(block)
        if owner is None:
            del self._shared[block]
            self._counts.shared -= 1
            return
        del self._idle[owner][block]
        owner.num_idle_blocks -= 1
        self._counts.take(owner.tenant)
        if not self._counts.by_tenant[owner.tenant]:
            del self._counts.by_tenant[owner.tenant]
        if not self._idle[owner]:
            del self._idle[owner]
            self._unrank(owner)
        for watcher in self.watchers:
            watcher(owner)

    def _value_changed(self, session: Session) -> None:
        if session in self._rank_of:
            self._unrank(session)
            self._rank(session)

    def _refresh(self) -> None:
        """Bring values and active tenants up to date."""
        self._table.advance()
        while self._active and next(iter(self._active.values())) < self._table.now - ACTIVE_S:
            self._active.popitem(last=False)
            self._victim = None

    def _rank(self, session: Session) -> None:
        self._seq += 1
        self._victim = None
        rank = self._rank_of[session] = _Rank(self._table.block_value(session), self._seq, session)
        insort(self._ranked.setdefault(session.tenant, []), rank)

    def _unrank(self, session: Session) -> None:
        rank = self._rank_of.pop(session)
        ranked = self._ranked[session.tenant]
        del ranked[bisect_left(ranked, rank)]
        if not ranked:
            del self._ranked[session.tenant]


class SessionMatcher:
    """Give each sequence its session, from its admission to its end."""

    def __init__(self, table: SessionTable, device: SessionEviction, host: SessionEviction, block_size: int):
        self._table, self._device, self._host, self._block_size = table, device, host, block_size

    def admit(self, sequence: Sequence, found: Sequences[tuple[int | None, int | None]]) -> None:
        """Begin a turn with a sequence. found: its cached blocks, each as (device block, host block)."""
        if sequence.session is None:
            session = self._named(sequence) or self._continued(sequence, found) or Session(sequence.request.tenant)
            sequence.session = session
            self._device.leave(session, [block for block, _ in found if block is not None])
            self._host.leave(session, [block for _, block in found if block is not None])
            self._table.begin_turn(session)

    def end(self, sequence: Sequence) -> None:
        if isinstance(sequence.session, Session):
            self._table.end_turn(sequence.session, sequence.num_tokens, _awaits(sequence), len(sequence.output))

    def _named(self, sequence: Sequence) -> Session | None:
        request = sequence.request
        if not request.of_program:
            return None
        return self._table.named(session_key(request), request.tenant, request.arrival)

    def _continued(self, sequence: Sequence, found: Sequences[tuple[int | None, int | None]]) -> Session | None:
        """Return the session that a sequence continues: it must have all that is cached of it, except for the last
        answer, which templates (reasoning) and clients may leave out."""
        owner = self._owner(*found[-1]) if found else None
        if owner is None or owner.running or sequence.num_tokens < owner.num_tokens - owner.num_answered:
            return None
        on_device, on_host = (set(blocks) for blocks in zip(*found, strict=True))
        missed = len(set(self._device.idle_blocks(owner)) - on_device) + len(
            set(self._host.idle_blocks(owner)) - on_host
        )
        of_answer = owner.num_answered // self._block_size + 1 if owner.num_answered else 0  # blocks, begun ones too
        return owner if missed <= of_answer else None

    def _owner(self, block: int | None, host_block: int | None) -> Session | None:
        if block is not None:
            return self._device.owner(block)
        return None if host_block is None else self._host.owner(host_block)


def _awaits(sequence: Sequence) -> Awaits:
    """Return what a session waits for behind this answer. It is unknown where no tools were offered (a client may read
    calls from the text by itself), and where the answer was broken off."""
    marks, output = sequence.request.call_marks, sequence.output
    if not marks or sequence.finish is None or sequence.finish.reason in ("abort", "error"):
        return ""
    return "tool" if any(_contains(output, mark) for mark in marks) else "person"


def _contains(output: list[int], mark: tuple[int, ...]) -> bool:
    first, length = mark[0], len(mark)
    return any(one == first and tuple(output[at : at + length]) == mark for at, one in enumerate(output))
