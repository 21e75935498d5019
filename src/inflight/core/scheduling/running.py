"""Running sequences: who holds a row, in which order they are served, and who gives way to whose next token.

Knows rows and blocks; takes them back from those that leave, are preempted, or are in the way of the next token of
somebody who comes before them. Who gives way to those that wait, `admission_preemption` knows; what is computed for
whoever runs, the step builder says.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Sequences
from itertools import takewhile

from inflight.core.kv.manager import KVCacheManager
from inflight.core.queueing.lanes import Lane, Lanes
from inflight.core.scheduling.preemption import Preemption
from inflight.core.scheduling.rows import Rows
from inflight.core.sequence import Sequence, SequenceView
from inflight.core.strategies import StepShape


class Running:
    def __init__(self, memory: KVCacheManager, lanes: Lanes, preemption: Preemption, max_rows: int, watermark: float):
        """watermark: share of all blocks that must stay available when a sequence joins others."""
        self.sequences: list[Sequence] = []
        self.masks_out: set[int] = set()  # transfer_ids that draws wait for
        self.preemptions = 0
        self.swap_preemptions = 0  # of these, the ones whose blocks were to be kept on the host
        self._memory = memory
        self._lanes = lanes
        self._preemption = preemption
        self._rows = Rows(max_rows)
        self._sorted = 0  # leading sequences that stand in order, where one lane runs and its ranks are steady
        self._watermark = math.ceil(watermark * memory.num_blocks)

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def free_rows(self) -> int:
        return self._rows.free

    def spare_for(self, lane: Lane, without: int = 0) -> int:
        """Blocks that a newcomer of this lane must leave available, with what those of other lanes have before it, if
        so many of those that run did not."""
        return (self._watermark if len(self.sequences) > without else 0) + self._lanes.reserved(lane)[1]

    def join(self, sequence: Sequence) -> int:
        """A sequence that has its blocks takes a row."""
        sequence.row = self._rows.take()
        sequence.started = False
        self.sequences.append(sequence)
        lane = self._lanes.of(sequence)
        lane.running += 1
        lane.queue.policy.started(SequenceView(sequence))
        return sequence.row

    def drain_freed_rows(self) -> tuple[int, ...]:
        """Rows given up since the last plan."""
        return self._rows.drain_freed()

    def free_again(self, rows: Iterable[int]) -> None:
        """Rows that a plan gave up which may not have come to the executor."""
        self._rows.free_again(rows)

    def decodes(self) -> tuple[int, int]:
        """Running sequences that need one token, and the tokens that they look back over, together."""
        computed = [one.num_computed for one in self.sequences if one.finish is None and one.num_uncomputed == 1]
        return len(computed), sum(computed) + len(computed)

    def blocks_by_lane(self) -> Counter[str]:
        """Entries of their tables; a shared block counts for everyone who holds it."""
        held: Counter[str] = Counter()
        for one in self.sequences:
            held[one.request.lane] += len(self._memory.blocks_of(one))
        return held

    def sort(self, now: float) -> None:
        """Sort them: the first is served first, the last is preempted first. Ranks compare within a lane only, and
        behind those that are kept there."""
        lanes = [lane for lane in self._lanes.all() if lane.running]
        if len(lanes) == 1 and lanes[0].queue.policy.steady and self._newcomers_are_last(lanes[0], now):
            return
        turn = {
            id(lane): (background, place)
            for background in (False, True)
            for place, lane in enumerate(self._lanes.in_turn(background))
        }

        def order(sequence: Sequence) -> object:
            lane = self._lanes.of(sequence)
            return turn[id(lane)], not sequence.protected, lane.queue.rank(sequence, now)

        self.sequences.sort(key=order)  # type: ignore[arg-type]  # ranks are opaque, but compare
        self._sorted = len(self.sequences)

    def _newcomers_are_last(self, lane: Lane, now: float) -> bool:
        """Whether the sequences stand in order, since whoever joined after the last time ranks behind the others."""
        sequences, rank = self.sequences, lane.queue.rank
        self._sorted = max(self._sorted, 1)
        while self._sorted < len(sequences):
            if rank(sequences[self._sorted], now) < rank(sequences[self._sorted - 1], now):
                return False
            self._sorted += 1
        return True

    def has_row(self, lane: Lane, shape: StepShape, without: Sequences[Sequence] = ()) -> bool:
        """Whether there is a row for a newcomer of this lane, if these did not run."""
        running = len(self.sequences) - len(without) + self._lanes.reserved(lane)[0]
        return running < shape.row_limit and self._lanes.rows_for(lane, self._rows.free, without) > 0

    def leave(self, sequence: Sequence) -> None:
        """An ended sequence gives up what it holds."""
        self._give_up_row(sequence)
        self._memory.free(sequence)

    def preempt(self, sequence: Sequence, now: float) -> None:
        """Back to its queue. Its blocks' content stays findable while nobody needs the space; when they are needed, it
        is forgotten and recomputed, or swapped."""
        keep = self._is_kept(sequence)
        self._send_back(sequence, keep, now)
        self.preemptions += 1
        self.swap_preemptions += keep

    def send_unstarted_back(self, now: float) -> None:
        """Send those back that have not begun behind cached content: it cannot be trusted any more."""
        for sequence in tuple(self.sequences):
            if not sequence.started and sequence.finish is None:
                self._send_back(sequence, False, now)

    def send_lost_back(self, sequence: Sequence, now: float) -> None:
        """Send back a sequence whose computed content is lost and of which nothing is in flight: it starts again."""
        sequence.recomputes = sequence.sits_out = False
        self._send_back(sequence, False, now)

    def sit_out(self, sequence: Sequence, transfer_id: int) -> None:
        """Its last draw waits for this transfer_id, with which the next plan that names it comes. Where what was
        computed cannot be taken back by a token, it comes again from the start."""
        self.masks_out.add(transfer_id)
        sequence.sits_out = sequence.slow_to_draw = True
        sequence.recomputes = self._memory.has_windows or self._memory.has_state
        if not sequence.recomputes:
            sequence.waiting_for_kv.add(transfer_id)

    def transferred(self, transfer_id: int, done: bool, now: float) -> None:
        """Let those go on that wait for it; where it failed, send them to their queue, to find what there is."""
        self.masks_out.discard(transfer_id)
        for sequence in tuple(self.sequences):
            if transfer_id in sequence.waiting_for_kv:
                sequence.waiting_for_kv.remove(transfer_id)
                if not done and sequence.finish is None:
                    self._send_back(sequence, False, now)

    def allocate_or_preempt(
        self, sequence: Sequence, now: float, length: int = 1, *, planned: bool = True
    ) -> tuple[int, ...] | None:
        """Blocks for the sequence's next `length` tokens; takes them from the lowest ranked when there are too few.

        None: the sequence must sit out this step (it was the lowest ranked itself, or the victim's last tokens are
        still in flight: it computes nothing more, and can be preempted in the next plan; or it is kept, and only
        foreground work could give way: it waits for blocks, which that will give up).
        planned: the step has somebody already. Else it may come to nothing, of which no record tells: then the lowest
        ranked waits for those in flight to end, instead of giving way to nobody.
        """
        while True:
            new_blocks = self._memory.allocate(sequence, sequence.num_computed + length)
            if new_blocks is not None:
                return new_blocks
            victims = self._victims_for(
                sequence, self._memory.num_missing_blocks(sequence, sequence.num_computed + length)
            )
            if not victims or len(self.sequences) == 1 or self._memory.is_storing:
                # Alone it is in flight, at depth 2; `commit` ends what has outgrown all memory. What is being stored
                # gives up its blocks when that is done.
                return None
            if any(victim.in_flight for victim in victims):
                for victim in victims:
                    victim.preempt_pending = victim.finish is None
                return None
            if not planned and victims == [sequence] and any(one.in_flight for one in self.sequences):
                return None
            for victim in victims:
                self.preempt(victim, now)
            if sequence in victims:
                return None

    def _victims_for(self, sequence: Sequence, blocks: int) -> list[Sequence]:
        """Who gives way when this one needs so many blocks more than there are: nobody that is kept, while others run;
        lowest ranks first, and no more of them than it takes, since blocks that others hold, too, are not given up."""
        others = [one for one in self.sequences if not one.protected]
        if not others:
            return self.sequences[-1:]
        if sequence.protected:
            others = [one for one in others if self._lanes.of(one).settings.background]
        behind = list(takewhile(lambda one: one is not sequence, reversed(others)))
        victims = self._memory.fewest_victims(behind, blocks)
        return victims or ([sequence] if len(behind) < len(others) else [])

    def _is_kept(self, victim: Sequence) -> bool:
        """Whether the victim's blocks are to be kept on the host: as far as it can go on behind them."""
        tokens, blocks = self._memory.resumable_tokens(victim), len(self._memory.blocks_of(victim))
        if tokens < victim.num_computed:
            blocks = min(blocks, tokens // self._memory.block_size * len(victim.block_tables))
        return tokens > 0 and self._preemption.keeps(tokens, blocks)

    def _send_back(self, sequence: Sequence, keep: bool, now: float) -> None:
        sequence.preempt_pending = sequence.protected = False
        if sequence.started:
            sequence.recompute_until = max(sequence.recompute_until, sequence.num_computed)
        sequence.timings.preempt(now)
        self._give_up_row(sequence)
        self._memory.preempt(sequence, keep)
        queue = self._lanes.of(sequence).queue
        queue.policy.preempted(SequenceView(sequence))
        queue.push(sequence, now)

    def _give_up_row(self, sequence: Sequence) -> None:
        assert sequence.row is not None
        self.sequences.remove(sequence)
        self._sorted -= 1
        self._lanes.of(sequence).running -= 1
        self._rows.give_up(sequence.row, sequence.started)
        sequence.row = None
