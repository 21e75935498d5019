"""The composer: fills the step that the strategy proposed, in the order that the policy gave.

The mechanism of batching: it alone hands out rows, blocks and token budget, preempts, and keeps the accounts. Running
sequences come first (those that need one token before those in the middle of a prompt), then waiting ones while there
is a row, budget, and enough blocks to stay above the watermark. Knows nothing of requests' ends (`scheduler`).
"""

from __future__ import annotations

import math

from inflight.core.ledger import OTHER, QueueClock
from inflight.core.memory import KVMemory
from inflight.core.plan import BatchPlan, Chunk, NewRow
from inflight.core.queue import WaitingQueue
from inflight.core.sequence import Sequence
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
        self.clock = QueueClock()
        self._memory = memory
        self._queue = queue
        self._rows = Rows(max_rows)
        self._spare = math.ceil(watermark * memory.pool.num_blocks)

    def compose(self, step: int, shape: StepShape, now: float) -> BatchPlan | None:
        """The plan of this step, or None when no token can be computed now."""
        fill = _Fill(shape.token_budget)
        preemptions = self.preemptions
        self._serve_running(fill, now)
        self.clock.charge(now)
        # After a preemption memory is short: a newcomer would only push out the next one.
        short = self.preemptions > preemptions
        reason = "blocks" if short else self._serve_waiting(fill, shape.row_limit, now)
        self.clock.charge(now, reason)
        if not fill.chunks:
            return None
        return BatchPlan(step, tuple(fill.chunks), tuple(fill.new_rows), self._rows.drain_freed())

    def leave(self, sequence: Sequence) -> None:
        """A running sequence gives up its row and blocks."""
        self.running.remove(sequence)
        if sequence.row is not None:
            self._rows.give_up(sequence.row)
            sequence.row = None
        self._memory.release(sequence)

    # -- running ------------------------------------------------------------------------------------------------

    def _serve_running(self, fill: _Fill, now: float) -> None:
        self.running.sort(key=self._queue.rank)
        prefills = []
        for sequence in tuple(self.running):
            if not sequence.in_flight:
                sequence.condemned = False  # whoever still needs its blocks ranks before it and takes them in this loop
            if sequence.row is None or sequence.condemned or sequence.finish is not None:
                continue
            behind = sequence.behind
            if behind > 1:
                prefills.append(sequence)
            elif behind == 1 and fill.budget:
                new_blocks = self._make_room(sequence, now)
                if new_blocks is not None:
                    self._add_chunk(fill, sequence, 1, new_blocks)
        for sequence in prefills:
            if sequence.row is not None and fill.budget:
                self._add_chunk(fill, sequence, min(sequence.behind, fill.budget), ())

    def _make_room(self, sequence: Sequence, now: float) -> tuple[int, ...] | None:
        """Blocks for the sequence's next token; takes them from the lowest ranked when the pool is empty.

        None: the sequence must sit out this step (it was the lowest ranked itself, or the victim's last tokens are
        still in flight: it computes nothing more, and can be preempted in the next plan).
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
        self.leave(sequence)
        self._queue.push(sequence)
        self.preemptions += 1

    # -- waiting ------------------------------------------------------------------------------------------------

    def _serve_waiting(self, fill: _Fill, row_limit: int, now: float) -> str:
        """Admit while possible; returns what the first one that stays is waiting for."""
        while (sequence := self._queue.peek()) is not None:
            if not self._rows.free or len(self.running) >= row_limit:
                return "rows"
            if not fill.budget:
                return "budget"
            table = self._memory.admit(sequence, self._spare if self.running else 0)
            if table is None:
                return "blocks"
            self._queue.pop()
            self._admit(fill, sequence, table, now)
        return OTHER

    def _admit(self, fill: _Fill, sequence: Sequence, table: tuple[int, ...], now: float) -> None:
        ledger = sequence.ledger
        if sequence.lost:
            ledger.recomputed_tokens += max(0, sequence.lost - sequence.computed)
        else:
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
        self._add_chunk(fill, sequence, min(sequence.behind, fill.budget), table)

    def _add_chunk(self, fill: _Fill, sequence: Sequence, length: int, new_blocks: tuple[int, ...]) -> None:
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
        if sequence.sample_index == 0 and start < len(sequence.prompt) <= sequence.computed:
            self._queue.let_go(sequence)


class _Fill:
    """A plan under construction."""

    __slots__ = ("budget", "chunks", "new_rows")

    def __init__(self, budget: int):
        self.budget = budget
        self.chunks: list[Chunk] = []
        self.new_rows: list[NewRow] = []
