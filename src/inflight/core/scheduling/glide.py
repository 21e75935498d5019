"""Gliding: decodes of which it is known that nothing will come of their next tokens but the tokens themselves.

For simulators. A sequence that has its first token, and whose length is forced, is foreseen for a while: each step
makes it one token longer, takes a block where its last one is full, and makes that one findable. While it glides, no
plan has a chunk for it and nothing of it is committed; its counters stand still and are brought up to date (`_sync`)
when a block is due, and for good before its last token, or before anybody might have to preempt it. What is left out
of a plan is told in it by number (`Glided`), so that the step's cost is the same. Steps in which all sequences glide,
and nobody waits, are alike: `stretch` says how many, and `skip` takes them at once.

Rows, blocks and their order, what can be found in them, counts and ends are those of stepping. What is left out is what
scheduling would have learnt of step times and of the lengths of answers under way, so that this is only for schedulers
that nobody asks for either (`simulate` sees to that). A real engine never glides.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from inflight.core.kv.manager import KVCacheManager
from inflight.core.sequence import Sequence
from inflight.core.types.plan import Glided

NOBODY: frozenset[Sequence] = frozenset()
LASTING = 4  # steps for which the available blocks must do, when a sequence begins to glide


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps that are alike: `rows` sequences decode, reading `context` positions together in the first step and one
    more each in every later one. most: such steps to come."""

    rows: int
    context: int
    most: int


@dataclass(frozen=True, slots=True)
class GlidedTokens:
    """A request had one token in each of the steps first … last - 1."""

    request_id: str
    first: int
    last: int


class Glide:
    """Knows the sequences that glide, and the step at which each is next to be looked at; no clock and no queue."""

    def __init__(self, memory: KVCacheManager, token: int):
        """token: what every glided token is."""
        self._memory = memory
        self._token = token
        self._first: dict[Sequence, int] = {}  # those that glide → step of their first token here
        self._since: dict[Sequence, int] = {}  # → step that their counters tell of
        self._context = 0  # positions that they read in the next step, together
        self._blocks: list[tuple[int, float, int, Sequence]] = []  # heap: step that needs or fills a block, rank
        self._ends: list[tuple[int, int, Sequence]] = []  # heap: step of the last token
        self._told: list[GlidedTokens] = []

    def __len__(self) -> int:
        return len(self._first)

    def join(self, sequence: Sequence, step: int) -> None:
        """Glides from this step on, if it can: it decodes, and neither ends nor is preempted at once."""
        if sequence.finish is not None or sequence.num_uncomputed != 1 or not sequence.output:
            return
        if sequence.num_computed < sequence.recompute_until:
            return  # what a preemption took is computed again, and counted as such
        tokens, lasting = sequence.checker.guaranteed_tokens, self._memory.pool.available * self._memory.block_size
        if tokens < 1 or sequence.request.params.n > 1 or lasting < LASTING * (len(self._first) + 1):
            return
        sequence.fast_forwarded = True
        self._first[sequence] = self._since[sequence] = step
        self._context += sequence.num_computed + 1
        heapq.heappush(self._ends, (step + tokens, sequence.number, sequence))
        self._await_block(sequence, step)

    def begin(self, step: int, running: int) -> frozenset[Sequence]:
        """Before a step is composed: whoever has its last token in it glides no more, nor does anybody if of so many
        running sequences one might lack a block. Returns those that need or fill one (`advance`)."""
        while self._ends and self._ends[0][0] <= step:
            self._leave(heapq.heappop(self._ends)[2], step)
        due = []
        while self._blocks and self._blocks[0][0] <= step:
            sequence = heapq.heappop(self._blocks)[3]
            if sequence.fast_forwarded:
                due.append(sequence)
        if len(due) + running - len(self._first) > self._memory.pool.available:
            self.end(step)
            return NOBODY
        return frozenset(due)

    def advance(self, sequence: Sequence, step: int) -> None:
        """It takes its token of this step, and the blocks as a chunk would."""
        self._sync(sequence, step + 1)
        computed, size = sequence.num_computed, self._memory.block_size
        if computed > len(sequence.blocks) * size and self._memory.grow(sequence, computed) is None:
            raise RuntimeError(f"sequence {sequence.number} glided into step {step}, and there is no block for it")
        if not computed % size:
            self._memory.publish(sequence)
        self._await_block(sequence, step + 1)

    def glided(self) -> Glided | None:
        """What the next step holds of them."""
        return Glided(len(self._first), self._context) if self._first else None

    def passed(self, steps: int) -> None:
        """So many steps were taken."""
        self._context += steps * len(self._first)

    def stretch(self, step: int) -> Stretch | None:
        """Steps from this one on in which nobody has its last token, and each has the blocks that it needs. None:
        somebody has its last token in the next."""
        rows, size = len(self._first), self._memory.block_size
        most = min(self._ends[0][0] - step, (self._memory.pool.available // rows - 1) * size) if rows else 0
        return Stretch(rows, self._context, most) if most > 0 else None

    def skip(self, step: int, steps: int) -> None:
        """Take so many steps of a stretch, block by block in the order of plans."""
        while self._blocks and self._blocks[0][0] < step + steps:
            due, _, _, sequence = heapq.heappop(self._blocks)
            if sequence.fast_forwarded:
                self.advance(sequence, due)
        self.passed(steps)

    def end(self, step: int) -> None:
        """Nobody glides any more; all is as if every plan before this step had been made."""
        for sequence in tuple(self._first):
            self._leave(sequence, step)
        self._blocks.clear()
        self._ends.clear()

    def drain(self) -> list[GlidedTokens]:
        """Tokens of those that glide no more, since the last call."""
        told, self._told = self._told, []
        return told

    def _leave(self, sequence: Sequence, step: int) -> None:
        self._sync(sequence, step)
        self._context -= sequence.num_computed + 1
        sequence.fast_forwarded = False
        del self._since[sequence]
        self._told.append(GlidedTokens(sequence.request.request_id, self._first.pop(sequence), step))

    def _sync(self, sequence: Sequence, step: int) -> None:
        """Its counters tell of this step."""
        tokens, self._since[sequence] = step - self._since[sequence], step
        sequence.output += [self._token] * tokens
        sequence.num_tokens += tokens
        sequence.num_computed += tokens
        sequence.checker.passed(tokens)

    def _await_block(self, sequence: Sequence, step: int) -> None:
        """Note the next step that needs a block of its own, or that fills one. Ranks are those of first come, first
        served."""
        size, computed = self._memory.block_size, sequence.num_computed
        wait = min(len(sequence.blocks) * size - computed, -(computed + 1) % size)
        heapq.heappush(self._blocks, (step + wait, sequence.request.arrival, sequence.number, sequence))
