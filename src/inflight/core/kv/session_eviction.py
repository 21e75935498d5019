"""Evict the blocks of the session with the least valuable blocks first, ends of texts before their roots.

A block of two sessions is shared (a system prompt): it is evicted after all others, least recently released first, and
so is a block of no session. The value of a tenant's blocks is reduced by as much as they exceed its share of the idle
blocks, so that it does not push out other tenants' sessions.

Values change with time. Sessions are ranked by the value that was computed last: when they began or ended a turn, and
every RERANK_INTERVAL_S seconds for the RERANK_BATCH that were valued longest ago, so that the cost of a look-up does
not depend on how many there are.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Iterator
from collections.abc import Sequence as Sequences
from itertools import islice
from typing import NamedTuple

from inflight.core.kv.block_pool import EvictionOrder
from inflight.core.kv.sessions import MAX_HELD_UP_S, Awaits, Session, SessionTable
from inflight.core.sequence import Sequence
from inflight.core.types.request import Request

RERANK_INTERVAL_S, RERANK_BATCH = 0.1, 32


class _Rank(NamedTuple):
    """seq: unique, so that sessions are never compared."""

    value: float
    seq: int
    session: Session


class SessionEviction(EvictionOrder):
    """An order whose owners are sessions: of the device's blocks, or of the host's."""

    def __init__(self, table: SessionTable):
        self._table = table
        table.watchers.append(self._turn_changed)
        self._owners: dict[int, Session | None] = {}  # of each block's content, held or not; None: shared
        self._idle: dict[Session, OrderedDict[int, None]] = {}  # blocks that no sequence holds
        self._shared: OrderedDict[int, None] = OrderedDict()
        self._num_by_tenant: Counter[str] = Counter()  # idle blocks of tenants' sessions
        self._num_idle = 0
        self._ranked: list[_Rank] = []  # least valuable first
        self._rank_of: OrderedDict[Session, _Rank] = OrderedDict()  # least recently valued first
        self._reranked_at = -1.0
        self._seq = 0

    def __len__(self) -> int:
        return self._num_idle

    def __contains__(self, block: object) -> bool:
        if not isinstance(block, int):
            return False
        owner = self._owners.get(block)
        return block in (self._shared if owner is None else self._idle.get(owner, ()))

    def __iter__(self) -> Iterator[int]:
        for session in sorted(self._idle, key=self._value):
            yield from self._idle[session]
        yield from self._shared

    def add(self, block: int, owner: object) -> None:
        if isinstance(owner, Session):
            self._owners[block] = owner if self._owners.get(block, owner) is owner else None
        session = self._owners.get(block)
        self._num_idle += 1
        if session is None:
            self._shared[block] = None
            return
        self._idle.setdefault(session, OrderedDict())[block] = None
        self._num_by_tenant[session.tenant] += 1
        session.num_idle_blocks += 1
        if session not in self._rank_of:
            self._rank(session)

    def discard(self, block: int) -> None:
        """Remove a block that is held again; its content keeps its owner."""
        if block in self:
            self._take(block)

    def forget(self, block: int) -> None:
        """Forget the owner of a block whose content is replaced."""
        self._owners.pop(block, None)

    def coming(self) -> Iterator[int]:
        self._refresh()
        for rank in self._ranked:
            yield from self._idle[rank.session]
        yield from self._shared

    def pop(self) -> int:
        self._refresh()
        block = next(iter(self._idle[self._ranked[0].session] if self._ranked else self._shared))
        self._take(block)
        return block

    def clear(self) -> None:
        for session, blocks in self._idle.items():
            session.num_idle_blocks -= len(blocks)
        for kept in (self._owners, self._idle, self._shared, self._num_by_tenant, self._rank_of):
            kept.clear()
        self._ranked.clear()
        self._num_idle = 0

    def owner(self, block: int) -> Session | None:
        """Return the session that owns a block's content; None where it is shared, or of no session yet."""
        return self._owners.get(block)

    def idle_blocks(self, session: Session) -> Iterator[int]:
        """Yield the blocks that are this session's own and that no sequence holds."""
        return iter(self._idle.get(session, ()))

    def num_idle_blocks(self, session: Session) -> int:
        """Return how many blocks `idle_blocks` yields."""
        return len(self._idle.get(session, ()))

    def _take(self, block: int) -> None:
        owner = self._owners.get(block)
        self._num_idle -= 1
        if owner is None:
            del self._shared[block]
            return
        del self._idle[owner][block]
        owner.num_idle_blocks -= 1
        self._num_by_tenant[owner.tenant] -= 1
        if not self._num_by_tenant[owner.tenant]:
            del self._num_by_tenant[owner.tenant]
        if not self._idle[owner]:
            del self._idle[owner]
            self._unrank(owner)

    def _turn_changed(self, session: Session) -> None:
        if session in self._rank_of:
            self._rank(session)

    def _refresh(self) -> None:
        """Value the next sessions again, if the last time was long enough ago."""
        if self._table.now - self._reranked_at <= RERANK_INTERVAL_S:
            return
        self._reranked_at = self._table.now
        for session in list(islice(self._rank_of, RERANK_BATCH)):
            self._rank(session)

    def _rank(self, session: Session) -> None:
        self._unrank(session)
        self._seq += 1
        rank = self._rank_of[session] = _Rank(self._value(session), self._seq, session)
        insort(self._ranked, rank)

    def _unrank(self, session: Session) -> None:
        rank = self._rank_of.pop(session, None)
        if rank is not None:
            del self._ranked[bisect_left(self._ranked, rank)]

    def _value(self, session: Session) -> float:
        fair_share = self._num_idle / max(1, len(self._num_by_tenant))
        return self._table.block_value(session) * min(1.0, fair_share / self._num_by_tenant[session.tenant])


class SessionMatcher:
    """Give each sequence its session, from its admission to its end."""

    def __init__(self, table: SessionTable, device: SessionEviction, host: SessionEviction, block_size: int):
        self._table, self._device, self._host, self._block_size = table, device, host, block_size

    def admit(self, sequence: Sequence, found: Sequences[tuple[int | None, int | None]]) -> None:
        """Begin a turn with a sequence. found: its cached blocks, each as (device block, host block)."""
        if sequence.session is None:
            session = self._named(sequence) or self._continued(sequence, found) or Session(sequence.request.tenant)
            sequence.session = session
            self._table.begin_turn(session)

    def end(self, sequence: Sequence) -> None:
        if isinstance(sequence.session, Session):
            self._table.end_turn(sequence.session, sequence.num_tokens, _awaits(sequence), len(sequence.output))

    def kept_blocks(self, sequence: Sequence, num_blocks: int) -> int:
        """Return the idle blocks of all `num_blocks` that a waiting sequence must leave to sessions that act.

        Those are of sessions that began before its own, and of each other tenant no more than its share. None once it
        has waited for MAX_HELD_UP_S.
        """
        request, table = sequence.request, self._table
        if not table.keeps or table.now - request.arrival > MAX_HELD_UP_S:
            return 0
        own = table.known(_name(request))
        began = request.arrival if own is None else own.began
        kept = Counter[str]()
        for session in table.acting():
            if session is not own and session.began <= began:
                kept[session.tenant] += self._device.num_idle_blocks(session)
        share = num_blocks // len(kept.keys() | {request.tenant})
        return sum(blocks if tenant == request.tenant else min(blocks, share) for tenant, blocks in kept.items())

    def _named(self, sequence: Sequence) -> Session | None:
        request = sequence.request
        if not request.of_program:
            return None
        return self._table.named(_name(request), request.tenant, request.arrival)

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


def _name(request: Request) -> tuple[str, str, str]:
    """Return the key of the session that a request names: a program's only one where it names none."""
    return request.tenant, request.cache_salt, request.session or request.program


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
