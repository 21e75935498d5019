"""The suffix drafter: what followed a sequence's last tokens where they stood before, in itself or in an answer.

Answers draft for sequences of their own salt alone, as the prefix cache shares: another tenant's answers show neither
in drafts nor in how often they are right. All indexes together take a bounded amount of memory; the oldest answers are
forgotten first.

An answer waits until drafts are asked for, since learning a token takes up to a microsecond: without drafts it costs
nothing, and where many end in one step, they are learned over several. A thread that learns them would make what is
drafted, and every plan with it, depend on how far that thread is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from inflight.compiled import module
from inflight.core.sequence import SequenceView
from inflight.core.speculation.speculation import NOTHING, Proposal
from inflight.execution.drafters.suffix_reference import LEVELS, ReferenceIndex

MAX_BYTES = 64 << 20  # a million tokens and more; the keys and values of so many take hundreds of times as much
MAX_READ = 16_384  # tokens of a sequence that a call reads, a few milliseconds: a long prompt takes several calls
LEARNED_PER_QUESTION = 1_024  # tokens of answers that a call learns, about, the oldest answers first
MAX_UNLEARNED = 16_384  # tokens of answers that wait to be learned; of more, the oldest are dropped
LONGEST_ANSWER = 4_096  # leading tokens of an answer that are learned
PROMPT_END = LEVELS[-1]  # tokens before it that are stored, too: the same question finds how the answer began


class SuffixIndex(Protocol):
    """An index over token ids; `suffix_reference` documents each operation."""

    def __len__(self) -> int: ...
    @property
    def room(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def append(self, token_ids: Sequence[int], /) -> None: ...
    def end_text(self) -> None: ...
    def drop_text(self) -> int: ...
    def propose(self, others: Self | None, most: int) -> tuple[tuple[int, ...], tuple[float, ...]]: ...


class IndexKind(Protocol):
    """Makes empty indexes. One takes at most bytes_alone, and bytes_per_token for each token in it."""

    bytes_alone: int
    bytes_per_token: int

    def __call__(self) -> SuffixIndex: ...


def best_kind() -> IndexKind:
    """Return the compiled index; the one in Python where nothing is compiled."""
    try:
        compiled: IndexKind = module().SuffixIndex
    except ImportError:
        return ReferenceIndex
    return compiled


@dataclass(slots=True, eq=False)
class _Salted:
    """The answers of one salt. count: answers."""

    salt: str
    index: SuffixIndex
    count: int = 0


class SuffixCache:
    """Learned answers, by salt."""

    def __init__(self, kind: IndexKind):
        self._kind = kind
        self._by_salt: dict[str, _Salted] = {}
        self._order: deque[_Salted] = deque()  # of each answer, oldest first, where it is
        self._tokens = 0
        self._indexes = 0

    def __len__(self) -> int:
        return len(self._order)

    @property
    def nbytes(self) -> int:
        """Return an upper bound of their bytes."""
        return self._indexes * self._kind.bytes_alone + self._tokens * self._kind.bytes_per_token

    def of(self, salt: str) -> SuffixIndex | None:
        """Return the index of a salt's answers; None where there are none."""
        found = self._by_salt.get(salt)
        return found.index if found is not None else None

    def add(self, salt: str, token_ids: Sequence[int]) -> None:
        """Learn an answer of one token or more. An index without room is replaced, and forgotten with its answers."""
        found = self._by_salt.get(salt)
        if found is None or found.index.room <= len(token_ids):
            found = self._by_salt[salt] = _Salted(salt, self._kind())
            self._indexes += 1
        found.index.append(token_ids)
        found.index.end_text()
        found.count += 1
        self._tokens += len(token_ids)
        self._order.append(found)

    def forget_oldest(self) -> None:
        oldest = self._order.popleft()
        self._tokens -= oldest.index.drop_text()
        oldest.count -= 1
        if oldest.count == 0:
            self._indexes -= 1
            if self._by_salt.get(oldest.salt) is oldest:
                del self._by_salt[oldest.salt]


class SuffixDrafter:
    name = "suffix"

    def __init__(self, max_bytes: int = MAX_BYTES, kind: IndexKind | None = None):
        """max_bytes: of all indexes. Running sequences come first, and answers get the rest. kind: of index; None: the
        fastest there is."""
        self._kind = kind if kind is not None else best_kind()
        self._max_bytes = max_bytes
        self._read: dict[int, SuffixIndex] = {}  # of each running sequence that was drafted for, by number
        self._read_bytes = 0  # at most
        self._answers = SuffixCache(self._kind)
        self._waiting: deque[tuple[str, tuple[int, ...]]] = deque()  # answers to be learned, oldest first, with salts
        self._waiting_tokens = 0

    @property
    def nbytes(self) -> int:
        """Return an upper bound of the bytes of all indexes."""
        return self._read_bytes + self._answers.nbytes + self._waiting_tokens * self._kind.bytes_per_token

    def propose(self, view: SequenceView, max_drafts: int) -> Proposal:
        """Return at most `max_drafts` drafts; none before a long prompt is read whole, or without memory for it."""
        self._learn()
        own, known = self._read.get(view.number), view.prompt_tokens + view.output_tokens
        start = len(own) if own is not None else 0
        if own is None:
            if not self._make_room(self._bytes_of(known)):
                return NOTHING
            own = self._read[view.number] = self._kind()
            self._read_bytes += self._kind.bytes_alone
        end = min(known, start + MAX_READ)
        taken = (end - start) * self._kind.bytes_per_token
        if not self._make_room(taken):
            return NOTHING
        own.append(view.token_slice(start, end))
        self._read_bytes += taken
        if end < known:
            return NOTHING
        return Proposal(*own.propose(self._answers.of(view.salt), max_drafts))

    def finished(self, view: SequenceView) -> None:
        """Drop the sequence's own index; its answer waits to be learned."""
        own = self._read.pop(view.number, None)
        if own is not None:
            self._read_bytes -= self._bytes_of(len(own))
        prompt, output = view.prompt_tokens, view.output_tokens
        if output == 0:
            return
        token_ids = view.token_slice(max(0, prompt - PROMPT_END), prompt + min(output, LONGEST_ANSWER))
        if not self._make_room(self._bytes_of(len(token_ids))):
            return
        self._waiting.append((view.salt, token_ids))
        self._waiting_tokens += len(token_ids)
        while self._waiting_tokens > MAX_UNLEARNED:
            self._next_waiting()

    def _learn(self) -> None:
        """Learn answers that wait, as far as one question is to pay for."""
        left = LEARNED_PER_QUESTION
        while self._waiting and left > 0:
            salt, token_ids = self._next_waiting()
            left -= len(token_ids)
            if self._make_room(self._bytes_of(len(token_ids))):
                self._answers.add(salt, token_ids)

    def _next_waiting(self) -> tuple[str, tuple[int, ...]]:
        salt, token_ids = self._waiting.popleft()
        self._waiting_tokens -= len(token_ids)
        return salt, token_ids

    def _bytes_of(self, tokens: int) -> int:
        """Return the bytes that an index of so many tokens takes at most."""
        return self._kind.bytes_alone + tokens * self._kind.bytes_per_token

    def _make_room(self, nbytes: int) -> bool:
        """Forget the oldest answers until so many more bytes fit. Return False, and forget none, where they cannot."""
        if self._read_bytes + nbytes > self._max_bytes:
            return False
        while self.nbytes + nbytes > self._max_bytes:
            if self._answers:
                self._answers.forget_oldest()
            else:
                self._next_waiting()
        return True
