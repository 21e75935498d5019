"""The suffix drafter: what followed a sequence's last tokens where they stood before, in itself or in an answer.

Knows which sequences it has read and how far, and how much memory all of that and the answers take; not how drafts are
found (`suffix_index`). Answers draft for sequences of their own salt alone, as the prefix cache shares: another
tenant's answers show neither in drafts nor in how often they are right.

An answer waits until drafts are asked for, since learning a token takes up to a microsecond: without drafts, it
costs nothing, and where many end in one step, they are learned over several. Were they learned by a thread of its own,
what is drafted, and with it every plan, would depend on how far it is.
"""

from __future__ import annotations

from collections import deque

from inflight.core.sequence import SequenceView
from inflight.core.speculation.speculation import NOTHING, Proposal
from inflight.execution.drafters.answers import Answers
from inflight.execution.drafters.suffix_index import IndexKind, SuffixIndex, best_kind
from inflight.execution.drafters.suffix_reference import LEVELS

MAX_BYTES = 64 << 20  # a million tokens and more; the keys and values of so many take hundreds of times as much
MAX_READ = 16_384  # tokens of a sequence that a call reads, a few milliseconds: a long prompt takes several calls
LEARNED_PER_QUESTION = 1_024  # tokens of answers that a call learns, about, the oldest answers first
MAX_UNLEARNED = 16_384  # tokens of answers that wait to be learned; of more, the oldest are dropped
LONGEST_ANSWER = 4_096  # leading tokens of an answer that are learned
PROMPT_END = LEVELS[-1]  # tokens before it that are kept, too: the same question finds how the answer began


class SuffixDrafter:
    name = "suffix"

    def __init__(self, max_bytes: int = MAX_BYTES, kind: IndexKind | None = None):
        """max_bytes: of all indexes. Running sequences come first, and answers have what these leave. kind: of index;
        without it, the fastest there is."""
        self._kind = kind if kind is not None else best_kind()
        self._max_bytes = max_bytes
        self._read: dict[int, SuffixIndex] = {}  # of each running sequence that was drafted for, by number
        self._read_bytes = 0  # at most
        self._answers = Answers(self._kind)
        self._waiting: deque[tuple[str, tuple[int, ...]]] = deque()  # answers to be learned, oldest first, with salts
        self._waiting_tokens = 0

    @property
    def nbytes(self) -> int:
        """At most."""
        return self._read_bytes + self._answers.nbytes + self._waiting_tokens * self._kind.bytes_per_token

    def propose(self, view: SequenceView, max_drafts: int) -> Proposal:
        """Return at most `max_drafts` drafts; none before a long prompt is read whole, or without memory for it."""
        self._learn()
        own, known = self._read.get(view.number), view.prompt_tokens + view.output_tokens
        start = len(own) if own is not None else 0
        if own is None:
            if not self._has_room(self._bytes_of(known)):
                return NOTHING
            own = self._read[view.number] = self._kind()
            self._read_bytes += self._kind.bytes_alone
        end = min(known, start + MAX_READ)
        taken = (end - start) * self._kind.bytes_per_token
        if not self._has_room(taken):
            return NOTHING
        own.append(view.token_slice(start, end))
        self._read_bytes += taken
        if end < known:
            return NOTHING
        return Proposal(*own.propose(self._answers.of(view.salt), max_drafts))

    def finished(self, view: SequenceView) -> None:
        """Its answer waits to be learned, and its own index goes."""
        own = self._read.pop(view.number, None)
        if own is not None:
            self._read_bytes -= self._bytes_of(len(own))
        prompt, output = view.prompt_tokens, view.output_tokens
        if output == 0:
            return
        token_ids = view.token_slice(max(0, prompt - PROMPT_END), prompt + min(output, LONGEST_ANSWER))
        if not self._has_room(self._bytes_of(len(token_ids))):
            return
        self._waiting.append((view.salt, token_ids))
        self._waiting_tokens += len(token_ids)
        while self._waiting_tokens > MAX_UNLEARNED:
            self._next_waiting()

    def _learn(self) -> None:
        """Answers that wait, as far as one question is to pay for."""
        left = LEARNED_PER_QUESTION
        while self._waiting and left > 0:
            salt, token_ids = self._next_waiting()
            left -= len(token_ids)
            if self._has_room(self._bytes_of(len(token_ids))):
                self._answers.add(salt, token_ids)

    def _next_waiting(self) -> tuple[str, tuple[int, ...]]:
        salt, token_ids = self._waiting.popleft()
        self._waiting_tokens -= len(token_ids)
        return salt, token_ids

    def _bytes_of(self, tokens: int) -> int:
        """Return the bytes that an index of so many tokens takes at most."""
        return self._kind.bytes_alone + tokens * self._kind.bytes_per_token

    def _has_room(self, nbytes: int) -> bool:
        """Whether so many more bytes may be taken; the oldest answers are forgotten for them, if that is enough."""
        if self._read_bytes + nbytes > self._max_bytes:
            return False
        while self.nbytes + nbytes > self._max_bytes:
            if self._answers:
                self._answers.forget_oldest()
            else:
                self._next_waiting()
        return True
