"""The composer: fills the step that the strategy proposed, in the order that the policy gave.

The mechanism of batching: it alone hands out rows, blocks and token budget, preempts, and keeps the accounts. Running
sequences come first (those that need one token before those in the middle of a prompt), then waiting ones while there
is a row, budget, and enough blocks to stay above the watermark. Under a strategy that batches requests together, ended
sequences linger: they keep row and blocks and are computed as padding until the last one ends. Knows nothing of
requests' ends (`scheduler`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from inflight.core.ledger import OTHER, QueueClock
from inflight.core.memory import KVMemory
from inflight.core.plan import BatchPlan, Chunk, NewRow
from inflight.core.queue import WaitingQueue
from inflight.core.sequence import Sequence, SequenceView
from inflight.core.strategies import StepShape


class Rows:
    """Free rows, and those given up since the last plan."""

    def __init__(self, count: int):
        self._free = list(range(count - 1, -1, -1))
        self._freed: list[int] = []

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        return self._free.pop()

    def give_up(self, row: int) -> None:
        self._free.append(row)
        self._freed.append(row)

    def drain_freed(self) -> tuple[int, ...]:
        freed, self._freed = tuple(self._freed), []
        return freed


class Composer:
    def __init__(self, memory: KVMemory, queue: WaitingQueue, max_rows: int, watermark: float):
        """watermark: share of all blocks that must stay available when a sequence joins others."""
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.together = False  # whether what runs is one batch that starts and ends together
        self.clock = QueueClock()
        self._memory = memory
        self._queue = queue
        self._rows = Rows(max_rows)
        self._spare = math.ceil(watermark * memory.pool.num_blocks)

    def compose(self, step: int, shape: StepShape, now: float) -> BatchPlan | None:
        """The plan of this step, or None when no token can be computed now."""
        if not self.running:
            self.together = shape.together
        fill = _Fill(shape)
        self._make_way(shape, now)
        preemptions = self.preemptions
        self._serve_running(fill, now)
        self.clock.charge(now)
        # After a preemption memory is short: a newcomer would only push out the next one.
        short = self.preemptions > preemptions
        reason = "blocks" if short else self._serve_waiting(fill, now)
        self.clock.charge(now, reason)
        if not fill.chunks:
            return None
        padding = self._padding(fill) if self.together else ()
        return BatchPlan(step, tuple(fill.chunks), tuple(fill.new_rows), self._rows.drain_freed(), padding)

    def load(self) -> tuple[int, int]:
        """Running sequences that need one token, and the tokens that they look back over, together."""
        decoding = [one for one in self.running if one.finish is None and one.behind == 1]
        return len(decoding), sum(one.computed + 1 for one in decoding)

    def ended(self, sequence: Sequence) -> None:
        """A sequence of a running row has its end, and nothing of it is in flight."""
        if not self.together:
            self._leave(sequence)
        elif all(one.finish is not None and not one.in_flight for one in self.running):
            for one in tuple(self.running):
                self._leave(one)

    def _leave(self, sequence: Sequence) -> None:
        """A running sequence gives up its row and blocks."""
        self.running.remove(sequence)
        if sequence.row is not None:
            self._rows.give_up(sequence.row)
            sequence.row = None
        self._memory.release(sequence)

    def _padding(self, fill: _Fill) -> tuple[int, ...]:
        """What fills every row of the batch up to the longest chunk; ended rows are padding from end to end."""
        longest = max(chunk.length for chunk in fill.chunks)
        short = [longest - chunk.length for chunk in fill.chunks if chunk.length < longest]
        return (*short, *[longest] * (len(self.running) - len(fill.chunks)))

    def _make_way(self, shape: StepShape, now: float) -> None:
        """Where the policy allows it, the first of the waiting pushes out lowest ranked running ones to get in."""
        if shape.joins is not None or not self.running:
            return
        head = next(self._queue.in_order(now), None)
        if head is None:
            return
        waiting = SequenceView(head)
        for victim in sorted(self.running, key=lambda sequence: self._queue.rank(sequence, now), reverse=True):
            enough_rows = self._rows.free and len(self.running) < shape.row_limit
            if enough_rows and self._memory.fits(head, self._spare if self.running else 0):
                return
            if victim.in_flight or not self._queue.policy.may_preempt(waiting, SequenceView(victim)):
                return
            self._preempt(victim, now)

    # -- running ------------------------------------------------------------------------------------------------

    def _serve_running(self, fill: _Fill, now: float) -> None:
        self.running.sort(key=lambda sequence: self._queue.rank(sequence, now))
        prefills = []
        for sequence in tuple(self.running):
            if sequence.condemned and not sequence.in_flight:
                self._preempt(sequence, now)
            if sequence.row is None or sequence.condemned or sequence.finish is not None:
                continue
            behind = sequence.behind
            if behind > 1:
                prefills.append(sequence)
            elif behind == 1 and fill.budget > 0:
                new_blocks = self._make_room(sequence, now)
                if new_blocks is not None:
                    self._add_chunk(fill, sequence, 1, new_blocks, now)
        for sequence in prefills:
            if sequence.row is not None and fill.budget > 0:
                self._add_chunk(fill, sequence, fill.share(sequence.behind), (), now)

    def _make_room(self, sequence: Sequence, now: float) -> tuple[int, ...] | None:
        """Blocks for the sequence's next token; takes them from the lowest ranked when the pool is empty.

        None: the sequence must sit out this step (it was the lowest ranked itself, or the victim's last tokens are
        still in flight and it gives way at the next commit).
        """
        while True:
            new_blocks = self._memory.grow(sequence, sequence.computed + 1)
            if new_blocks is not None:
                return new_blocks
            victim = self.running[-1]
            if victim is sequence and len(self.running) == 1:
                return None  # in flight at depth 2; `commit` ends what has outgrown all memory
            if victim.in_flight:
                victim.condemned = victim.finish is None
                return None
            self._preempt(victim, now)
            if victim is sequence:
                return None

    def _preempt(self, sequence: Sequence, now: float) -> None:
        """Recompute: the blocks are given up (their content stays findable while nobody needs the space)."""
        sequence.condemned = False
        sequence.lost = sequence.computed
        sequence.ledger.preempt(now)
        self._leave(sequence)
        self._queue.push(sequence, now)
        self.preemptions += 1

    # -- waiting ------------------------------------------------------------------------------------------------

    def _serve_waiting(self, fill: _Fill, now: float) -> str:
        """Admit while possible; returns what the first one that stays is waiting for."""
        shape = fill.shape
        for sequence in self._candidates(shape, now):
            if not self._rows.free or len(self.running) >= shape.row_limit:
                return "rows"
            if not fill.has_room_for(sequence):
                return "budget"
            spare = self._spare if self.running else 0
            table = self._memory.admit(sequence, spare, to_the_end=shape.together)
            if table is None:
                return "blocks"
            self._queue.take(sequence)
            self._admit(fill, sequence, table, now)
        return OTHER if shape.joins is None or not self.together else "window"

    def _candidates(self, shape: StepShape, now: float) -> Iterator[Sequence]:
        """The waiting in order, as far as the strategy lets them join."""
        if shape.joins is None:
            yield from self._queue.in_order(now)
            return
        for sequence in self._queue.select(shape.joins):
            siblings = tuple(self._queue.siblings(sequence))
            yield sequence
            yield from siblings  # their prompt is planned by now, and they belong to the same batch

    def _admit(self, fill: _Fill, sequence: Sequence, table: tuple[int, ...], now: float) -> None:
        ledger = sequence.ledger
        if sequence.lost:
            ledger.recomputed_tokens += max(0, sequence.lost - sequence.computed)
            sequence.lost = 0
        elif not sequence.output:
            ledger.cached_tokens = sequence.computed
        ledger.start(now, self.clock)
        sequence.row = self._rows.take()
        self.running.append(sequence)
        request = sequence.request
        fill.new_rows.append(
            NewRow(
                row=sequence.row,
                token_ids=sequence.token_slice(0, sequence.known),
                prompt_length=len(sequence.prompt),
                params=request.params,
                seed=request.seed,
                sample_index=sequence.sample_index,
                banned_token_ids=sequence.banned,
            )
        )
        self._add_chunk(fill, sequence, fill.share(sequence.behind), table, now)

    def _add_chunk(self, fill: _Fill, sequence: Sequence, length: int, new_blocks: tuple[int, ...], now: float) -> None:
        """The counters advance at once, so that the next plan can be made while this one runs."""
        assert sequence.row is not None
        start = sequence.computed
        sample = length == sequence.known + sequence.promised - start
        fill.chunks.append(Chunk(sequence.number, sequence.row, start, length, new_blocks, sample))
        fill.budget -= length
        sequence.computed = start + length
        sequence.promised += sample
        sequence.in_flight += 1
        self._memory.publish(sequence)
        if sequence.sample_index == 0 and sequence.computed >= len(sequence.prompt):
            self._queue.let_go(sequence, now)
        new_prompt_tokens = min(sequence.computed, len(sequence.prompt)) - max(start, sequence.charged)
        if new_prompt_tokens > 0:
            sequence.charged += new_prompt_tokens
            self._queue.policy.served(SequenceView(sequence), new_prompt_tokens, 0)


class _Fill:
    """A plan under construction."""

    __slots__ = ("budget", "chunks", "new_rows", "shape")

    def __init__(self, shape: StepShape):
        self.shape = shape
        self.budget = shape.token_budget
        self.chunks: list[Chunk] = []
        self.new_rows: list[NewRow] = []

    def has_room_for(self, sequence: Sequence) -> bool:
        """Whether a newcomer may have tokens: some, or with whole prompts all of them, unless none has joined yet."""
        if self.budget <= 0:
            return False
        return not self.shape.whole_prompts or not self.new_rows or sequence.known <= self.budget

    def share(self, behind: int) -> int:
        """Tokens that a sequence gets in this step."""
        return behind if self.shape.whole_prompts else min(behind, self.budget)
