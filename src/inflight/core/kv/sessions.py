"""Sessions: the turns of conversations, recognised as their requests come, and the value of a cached block of each.

A client may name the session (`Request.session`), within its tenant and its cache salt. Without a name, a sequence that
continues all that is cached of a session is its next turn. `session_eviction` keeps the blocks that belong to sessions.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Sequences
from typing import Literal, Protocol

from msgspec import Struct

from inflight.core.kv.reuse_gaps import GapWatch, ReuseGaps
from inflight.core.sequence import Sequence

MAX_NAMED = 20_000  # sessions that are remembered by name; the one that came longest ago is forgotten first
TURN_CLASSES = 4  # sessions with 1, 2 to 3, 4 to 7 and more turns have gaps of their own
COMPUTING_S = 1e-3  # a session that computes now is as valuable as one that is certain to return in so many seconds

Awaits = Literal["tool", "person", ""]  # what a session rests for; "": unknown


class Session(Struct, eq=False):
    """One conversation.

    Attributes:
        tenant: Owner of the session.
        is_named: Whether the client named it.
        turns: Turns so far.
        rests_since: End of its last turn, in seconds; None while a turn runs.
        num_tokens: Tokens at the end of its last turn; the last `num_answered` of them are the answer.
        running: Sequences of it that are alive.
        awaits: What it waits for since its last turn.
        num_idle_blocks: Blocks of its own that no sequence holds, on the device and on the host.
        block_cost: Seconds to compute a block of it again.
    """

    tenant: str
    is_named: bool = False
    turns: int = 0
    rests_since: float | None = None
    num_tokens: int = 0
    num_answered: int = 0
    running: int = 0
    awaits: Awaits = ""
    num_idle_blocks: int = 0
    block_cost: float = 1.0


class BlockOwners(Protocol):
    """The sessions that own the blocks of one memory (`session_eviction`)."""

    def owner(self, block: int) -> Session | None: ...

    def idle_blocks(self, session: Session) -> Iterable[int]: ...


class SessionTable:
    def __init__(self, block_seconds: Callable[[int], float] = lambda tokens: 1.0):
        """block_seconds(tokens): seconds to compute one block again of a text with so many tokens."""
        self.now = 0.0  # set before each plan and commit
        self.watchers = list[Callable[[Session], None]]()  # called once a session runs, and once it rests
        self._block_seconds = block_seconds
        self._named: OrderedDict[object, Session] = OrderedDict()
        self._gaps: defaultdict[tuple[Awaits, int], ReuseGaps] = defaultdict(ReuseGaps)
        self._watch: GapWatch[Session]
        self.begin_anew()

    def __len__(self) -> int:
        return len(self._named)

    def begin_anew(self) -> None:
        """Forget all sessions, where all sequences and blocks are gone; what gaps have taught stays."""
        self.watchers.clear()
        self._named.clear()
        self._watch = GapWatch(self._gaps_of, lambda one: one.is_named or one.num_idle_blocks > 0)

    def named(self, key: object, tenant: str) -> Session:
        """Return the session of this name; create it if there is none."""
        session = self._named.get(key)
        if session is None:
            session = self._named[key] = Session(tenant, is_named=True)
            if len(self._named) > MAX_NAMED:
                self._named.popitem(last=False)
        self._named.move_to_end(key)
        return session

    def begin_turn(self, session: Session) -> None:
        if session.rests_since is not None:
            self._watch.stop(session, self.now)
            session.rests_since = None
            self._notify(session)
        if not session.running:
            session.turns += 1
        session.running += 1

    def end_turn(self, session: Session, num_tokens: int, awaits: Awaits = "", num_answered: int = 0) -> None:
        """End one sequence of the session's turn; the last `num_answered` of its tokens are the answer."""
        session.running -= 1
        if num_tokens > session.num_tokens:
            session.num_tokens, session.num_answered = num_tokens, num_answered
        session.awaits = awaits
        if session.running <= 0:
            session.running, session.rests_since = 0, self.now
            session.block_cost = max(self._block_seconds(session.num_tokens), 1e-9)
            self._watch.start(session, self.now)
            self._notify(session)

    def block_value(self, session: Session) -> float:
        """Return the seconds of computing that a cached block of the session saves, per second that it is kept."""
        self._watch.advance(self.now)
        if session.rests_since is None:
            return session.block_cost / COMPUTING_S
        return session.block_cost * self._gaps_of(session).hit_rate(max(0.0, self.now - session.rests_since))

    def _notify(self, session: Session) -> None:
        for watcher in self.watchers:
            watcher(session)

    def _gaps_of(self, session: Session) -> ReuseGaps:
        return self._gaps[session.awaits, min(TURN_CLASSES - 1, session.turns.bit_length() - 1)]


class SessionMatcher:
    """Give each sequence its session, from its admission to its end."""

    def __init__(self, table: SessionTable, device: BlockOwners, host: BlockOwners, block_size: int):
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

    def _named(self, sequence: Sequence) -> Session | None:
        request = sequence.request
        if not request.session:
            return None
        return self._table.named((request.tenant, request.cache_salt, request.session), request.tenant)

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
