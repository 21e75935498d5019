"""Running sequences: which hold a row, in which order they are served, and which are preempted for a next token."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Sequences
from itertools import takewhile
from typing import Literal

from msgspec import Struct

from inflight.core.estimation.latency import LatencyModel, prefill_seconds
from inflight.core.kv.manager import KVCacheManager
from inflight.core.queueing.lanes import Lane, Lanes
from inflight.core.request_timings import StepTime
from inflight.core.sequence import Sequence, SequenceView
from inflight.core.strategies import StepShape

PreemptionMode = Literal["recompute", "swap", "auto"]


class SwapRule(Struct, frozen=True):
    """Whether a preempted sequence's blocks are kept on the host, or forgotten and computed again.

    Attributes:
        mode: auto: whichever takes less time, copying there and back or computing again.
        latency: The model of step time.
        copy_seconds: To copy one block one way.
    """

    mode: PreemptionMode
    latency: LatencyModel
    copy_seconds: float

    def swaps(self, tokens: int, blocks: int) -> bool:
        """Return whether a victim with so many computed tokens in so many blocks is swapped."""
        if self.mode != "auto":
            return self.mode == "swap"
        return 2 * blocks * self.copy_seconds < prefill_seconds(self.latency, tokens)


class SchedulerCounts(Struct):
    """Counts since the engine began. Tokens, but for preemptions (swap_preemptions are among them)."""

    preemptions: int = 0
    swap_preemptions: int = 0
    recomputed_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0


class SteadyDecodes(Struct, eq=False):
    """Decodes of a plan that the next ones can repeat.

    Attributes:
        sequences: In the plan's order.
        lane: Of all of them.
        steps_left: Until one has all its tokens.
    """

    sequences: list[Sequence]
    lane: Lane
    steps_left: int


class Running:
    """Sequences with a row.

    Attributes:
        sequences: By rank as of the last plan: the first is served first, the last is preempted first.
        run_to_completion: Whether they are one batch that starts and ends together.
        masks_out: Transfer ids that draws wait for.
        steady: Decodes of the last plan; None after a join, an end, a preemption, a failed step, or a draw that waits.
    """

    def __init__(
        self,
        memory: KVCacheManager,
        lanes: Lanes,
        time: StepTime,
        counts: SchedulerCounts,
        swap_rule: SwapRule,
        max_rows: int,
        watermark: float,
    ):
        """watermark: share of all blocks that must stay available when a sequence joins others."""
        self.sequences: list[Sequence] = []
        self.run_to_completion = False
        self.masks_out: set[int] = set()
        self.steady: SteadyDecodes | None = None
        self._memory, self._lanes, self._time, self._counts = memory, lanes, time, counts
        self._swap_rule = swap_rule
        self._free_rows = list(range(max_rows - 1, -1, -1))
        self._freed_rows: list[int] = []  # since the last plan
        self._sorted = 0  # leading sequences in order, where one lane runs and its ranks are steady
        self._watermark = math.ceil(watermark * memory.num_blocks)

    def __len__(self) -> int:
        return len(self.sequences)

    # -- rows ---------------------------------------------------------------------------------------------------

    @property
    def num_free_rows(self) -> int:
        return len(self._free_rows)

    def has_row(self, lane: Lane, shape: StepShape, without: Sequences[Sequence] = ()) -> bool:
        """Return whether there is a row for a newcomer of a lane, if these sequences did not run."""
        running = len(self.sequences) - len(without) + self._lanes.reserved(lane)[0]
        return running < shape.row_limit and self._lanes.rows_for(lane, len(self._free_rows), without) > 0

    def spare_blocks(self, lane: Lane, without: int = 0) -> int:
        """Return the blocks that a newcomer of a lane must leave available: the watermark, if more sequences run than
        these, and what is reserved for other lanes."""
        return (self._watermark if len(self.sequences) > without else 0) + self._lanes.reserved(lane)[1]

    def drain_freed_rows(self) -> tuple[int, ...]:
        """Return the rows that were freed since the last call."""
        freed, self._freed_rows = tuple(self._freed_rows), []
        return freed

    def free_rows_again(self, rows: Iterable[int]) -> None:
        """Report rows as freed once more, since the executor may not have heard of it; not those taken again."""
        self._freed_rows += [row for row in rows if row in self._free_rows and row not in self._freed_rows]

    # -- counts -------------------------------------------------------------------------------------------------

    def count_decodes(self) -> tuple[int, int]:
        """Return how many sequences need one token, and the tokens that they look back over, together."""
        computed = [one.num_computed for one in self.sequences if one.finish is None and one.num_uncomputed == 1]
        return len(computed), sum(computed) + len(computed)

    def blocks_by_lane(self) -> Counter[str]:
        """Count the entries of block tables; a shared block counts for each sequence that holds it."""
        held: Counter[str] = Counter()
        for one in self.sequences:
            held[one.request.lane] += len(self._memory.blocks_of(one))
        return held

    # -- order --------------------------------------------------------------------------------------------------

    def sort(self) -> None:
        """Sort by lane, protected sequences first, then by rank: ranks compare within a lane only."""
        lanes = [lane for lane in self._lanes.all() if lane.running]
        if len(lanes) == 1 and lanes[0].queue.policy.steady and self._newcomers_are_last(lanes[0]):
            return
        turn = {
            id(lane): (background, index)
            for background in (False, True)
            for index, lane in enumerate(self._lanes.in_turn(background))
        }

        def order(sequence: Sequence) -> object:
            lane = self._lanes.of(sequence)
            return turn[id(lane)], not sequence.protected, lane.queue.rank(sequence)

        self.sequences.sort(key=order)  # type: ignore[arg-type]  # ranks are opaque, but compare
        self._sorted = len(self.sequences)

    def _newcomers_are_last(self, lane: Lane) -> bool:
        """Return whether all are in order, since those that joined after the last sort rank behind the others."""
        sequences, rank = self.sequences, lane.queue.rank
        self._sorted = max(self._sorted, 1)
        while self._sorted < len(sequences):
            if rank(sequences[self._sorted]) < rank(sequences[self._sorted - 1]):
                return False
            self._sorted += 1
        return True

    # -- joining and leaving ------------------------------------------------------------------------------------

    def join(self, sequence: Sequence) -> None:
        """Give a row to a sequence that has its blocks."""
        self.steady = None
        sequence.row = self._free_rows.pop()
        sequence.started = False
        self.sequences.append(sequence)
        lane = self._lanes.of(sequence)
        lane.running += 1
        lane.queue.policy.started(SequenceView(sequence))

    def leave(self, sequence: Sequence) -> None:
        """Free what an ended sequence holds, of which nothing is in flight; in a batch when all have ended."""
        if self.run_to_completion:
            self.end_batch()
        else:
            self._leave(sequence)

    def end_batch(self) -> None:
        """Free what the sequences of a batch hold, if all of them have ended."""
        if all(one.finish is not None and not one.in_flight for one in self.sequences):
            for one in tuple(self.sequences):
                self._leave(one)

    def _leave(self, sequence: Sequence) -> None:
        self._free_row(sequence)
        self._memory.free(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """Send a sequence back to its queue. The content of its blocks stays findable while their space is not needed;
        then it is swapped, or forgotten and computed again."""
        tokens, blocks = self._memory.resumable_tokens(sequence), len(self._memory.blocks_of(sequence))
        if tokens < sequence.num_computed:
            blocks = min(blocks, tokens // self._memory.block_size * len(sequence.block_tables))
        swap = tokens > 0 and self._swap_rule.swaps(tokens, blocks)
        self._memory.publish_deferred(sequence)
        self._send_back(sequence, swap)
        self._counts.preemptions += 1
        self._counts.swap_preemptions += swap

    def send_unstarted_back(self) -> None:
        """Send back the sequences that have not begun behind cached content, which cannot be trusted any more."""
        for sequence in tuple(self.sequences):
            if not sequence.started and sequence.finish is None:
                self._send_back(sequence, False)

    def send_lost_back(self, sequence: Sequence) -> None:
        """Send back a sequence whose computed content is lost, and of which nothing is in flight: it starts again."""
        sequence.recomputes = sequence.sits_out = False
        self._send_back(sequence, False)

    def sit_out(self, sequence: Sequence, transfer_id: int) -> None:
        """Have a sequence wait for the mask of its last draw, with whose transfer id the next plan comes that names it.

        Where computed tokens cannot be taken back by one, the sequence starts again.
        """
        self.steady = None
        self.masks_out.add(transfer_id)
        sequence.sits_out = sequence.slow_to_draw = True
        sequence.recomputes = self._memory.has_windows or self._memory.has_state
        if not sequence.recomputes:
            sequence.waiting_for_kv.add(transfer_id)

    def end_transfer(self, transfer_id: int, done: bool) -> None:
        """Let the sequences go on that wait for a transfer; where it failed, send them back to their queue."""
        self.masks_out.discard(transfer_id)
        for sequence in tuple(self.sequences):
            if transfer_id in sequence.waiting_for_kv:
                sequence.waiting_for_kv.remove(transfer_id)
                if not done and sequence.finish is None:
                    self._send_back(sequence, False)

    def _send_back(self, sequence: Sequence, swap: bool) -> None:
        sequence.preempt_pending = sequence.protected = False
        if sequence.started:
            sequence.recompute_until = max(sequence.recompute_until, sequence.num_computed)
        sequence.timings.preempt(self._time.now)
        self._free_row(sequence)
        self._memory.preempt(sequence, swap)
        queue = self._lanes.of(sequence).queue
        queue.policy.preempted(SequenceView(sequence))
        queue.push(sequence)

    def _free_row(self, sequence: Sequence) -> None:
        assert sequence.row is not None
        self.steady = None
        self.sequences.remove(sequence)
        self._sorted -= 1
        self._lanes.of(sequence).running -= 1
        self._free_rows.append(sequence.row)
        if sequence.started:
            self._freed_rows.append(sequence.row)
        sequence.row = None

    # -- blocks for next tokens ---------------------------------------------------------------------------------

    def allocate_or_preempt(
        self, sequence: Sequence, length: int = 1, *, planned: bool = True
    ) -> tuple[int, ...] | None:
        """Allocate blocks for a sequence's next tokens, if need be of the lowest ranked sequences, which are preempted.

        Args:
            sequence: It runs.
            length: Number of tokens.
            planned: Whether the step has a chunk already. If not, it may stay empty, and no record has it:
                then the lowest ranked waits for those in flight to end, instead of being preempted for no one.

        Returns:
            The new blocks. None where it sits out this step: it was the lowest ranked itself; or a victim's last tokens
            are in flight, so that it can be preempted in the next plan; or it is protected, and must wait for blocks of
            foreground work; or content of blocks is stored first.
        """
        while True:
            new_blocks = self._memory.allocate(sequence, sequence.num_computed + length)
            if new_blocks is not None:
                return new_blocks
            missing = self._memory.num_missing_blocks(sequence, sequence.num_computed + length)
            victims = self._victims_for(sequence, missing)
            if not victims or len(self.sequences) == 1 or self._memory.is_storing:
                # Alone it is in flight, with async scheduling; `commit` ends what has outgrown all memory. What is
                # being stored frees its blocks afterwards.
                return None
            if any(victim.in_flight for victim in victims):
                for victim in victims:
                    victim.preempt_pending = victim.finish is None
                return None
            if not planned and victims == [sequence] and any(one.in_flight for one in self.sequences):
                return None
            for victim in victims:
                self.preempt(victim)
            if sequence in victims:
                return None

    def _victims_for(self, sequence: Sequence, blocks: int) -> list[Sequence]:
        """Return the fewest sequences of the lowest ranks that free so many blocks; protected ones only where no others
        run. Blocks that others hold, too, are not freed."""
        others = [one for one in self.sequences if not one.protected]
        if not others:
            return self.sequences[-1:]
        if sequence.protected:
            others = [one for one in others if self._lanes.of(one).settings.background]
        behind = list(takewhile(lambda one: one is not sequence, reversed(others)))
        victims = self._memory.fewest_victims(behind, blocks)
        return victims or ([sequence] if len(behind) < len(others) else [])
