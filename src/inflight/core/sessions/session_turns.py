"""Turns of sessions as sequences come and go: whose turn a sequence is, and whose its blocks are.

A client may name the session (`Request.session`); otherwise whoever goes on behind all that is left of a session, with
a longer text, is its next turn. Knows sequences and blocks' owners; what that is worth, the table knows.
"""

from __future__ import annotations

from collections.abc import Sequence as Sequences

from inflight.core.sequence import Sequence
from inflight.core.sessions.session import Awaits, Session
from inflight.core.sessions.session_eviction import SessionEviction
from inflight.core.sessions.session_table import SessionTable

Places = Sequences[tuple[int | None, int | None]]  # blocks of the device, or of the host


class SessionTurns:
    def __init__(self, table: SessionTable, block_size: int):
        self.order, self.host_order = SessionEviction(table), SessionEviction(table)
        self._table, self._block_size = table, block_size

    def begins(self, sequence: Sequence, found: Places) -> None:
        """It is admitted behind what these have."""
        if sequence.session is None:
            session = self._named(sequence) or self._followed(sequence, found) or Session(sequence.request.tenant)
            sequence.session = session
            self._table.begins(session)

    def ends(self, sequence: Sequence) -> None:
        """It will not be back."""
        if isinstance(sequence.session, Session):
            self._table.ends(sequence.session, sequence.num_tokens, _awaits(sequence), len(sequence.output))

    def _named(self, sequence: Sequence) -> Session | None:
        request = sequence.request
        if not request.session:
            return None
        return self._table.named((request.tenant, request.cache_salt, request.session), request.tenant)

    def _followed(self, sequence: Sequence, found: Places) -> Session | None:
        """Whose text it goes on with, if it does so behind all that is left of it, the last answer excepted: templates
        leave out what was reasoned, and clients what they have no use for."""
        owner = self._owner(found[-1]) if found else None
        if owner is None or owner.running or sequence.num_tokens < owner.tokens - owner.answered:
            return None
        blocks, host_blocks = (set(numbers) for numbers in zip(*found, strict=True))
        others = len(self.order.resting(owner) - blocks) + len(self.host_order.resting(owner) - host_blocks)
        answer = owner.answered // self._block_size + 1 if owner.answered else 0  # blocks, begun ones included
        return owner if others <= answer else None

    def _owner(self, place: tuple[int | None, int | None]) -> Session | None:
        block, host_block = place
        if block is not None:
            return self.order.owner(block)
        return None if host_block is None else self.host_order.owner(host_block)


def _awaits(sequence: Sequence) -> Awaits:
    """Where no tools were offered nothing can be told: a client may read calls from the text by itself. Nor where the
    answer was broken off."""
    marks, output = sequence.request.call_marks, sequence.output
    if not marks or sequence.finish is None or sequence.finish.reason in ("abort", "error"):
        return ""
    return "tool" if any(_holds(output, mark) for mark in marks) else "person"


def _holds(output: list[int], mark: tuple[int, ...]) -> bool:
    first, length = mark[0], len(mark)
    return any(one == first and tuple(output[at : at + length]) == mark for at, one in enumerate(output))
