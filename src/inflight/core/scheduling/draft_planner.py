"""The draft planner: which decodes of a step have drafts, and how many.

Knows what everybody else has left of the step's budget and of the blocks; not what is drafted (`estimation.drafter`),
nor whether it was right (the executor). Drafts take blocks that are free, with the watermark left, and no content of
the cache; nobody is pushed out for them.
"""

from __future__ import annotations

from inflight.core.estimation.drafter import Drafter
from inflight.core.kv.manager import KVCacheManager
from inflight.core.queueing.lanes import Lanes
from inflight.core.scheduling.running import Running
from inflight.core.scheduling.step_draft import StepDraft
from inflight.core.sequence import Sequence, SequenceView

MOST = 32  # drafts of a sequence in a step; they are sampled in one pass, and so many are hardly ever right


class DraftPlanner:
    def __init__(self, drafter: Drafter, memory: KVCacheManager, lanes: Lanes, running: Running):
        self._drafter = drafter
        self._memory = memory
        self._lanes = lanes
        self._running = running

    def add(self, draft: StepDraft, now: float) -> None:
        """Each decode whose next token no plan in flight samples has its part of what is left. Background work is
        drafted for while no other runs, within the target of its steps."""
        new = {one.row for one in draft.new_rows}  # a decode may have been preempted, and have joined again
        places = {chunk.sequence_id: place for place, chunk in enumerate(draft.chunks) if chunk.row not in new}
        decodes = [one for one in draft.decodes if one.number in places and one.in_flight == 1]
        budget = draft.left(draft.budget, 0)
        if any(lane.running for lane in self._lanes.in_turn(background=False)):
            decodes = [one for one in decodes if not self._lanes.of(one).settings.background]
        elif decodes:
            most = self._lanes.background_tokens((), draft.shape.token_budget, now)
            budget = min(budget, most - draft.shape.token_budget + draft.budget)
        for place, sequence in enumerate(decodes):
            most = min(-(-budget // (len(decodes) - place)), self._room(sequence), MOST)
            token_ids = tuple(self._drafter.propose(SequenceView(sequence), most)) if most > 0 else ()
            if token_ids:
                self._take(draft, places[sequence.number], sequence, token_ids)
                budget -= len(token_ids)

    def _take(self, draft: StepDraft, place: int, sequence: Sequence, token_ids: tuple[int, ...]) -> None:
        new_blocks = self._memory.tables.grow(sequence, sequence.num_computed + len(token_ids))
        assert new_blocks is not None
        others: tuple[tuple[int, ...], ...] = ()
        if self._memory.has_windows:
            new_blocks, others = self._memory.tables.tell(sequence)
        draft.add_drafts(place, token_ids, new_blocks, others)
        sequence.draft(len(token_ids))
        lane = self._lanes.of(sequence)
        lane.served(len(token_ids))
        lane.owed.take(len(token_ids), sequence.protected)

    def _room(self, sequence: Sequence) -> int:
        """Those that its blocks hold, and others that are free, with a token behind them that it may have; none, where
        its blocks are wanted."""
        if sequence.preempt_pending:
            return 0
        spare = self._memory.pool.free - self._running.spare_for(self._lanes.of(sequence))
        held = self._memory.tables.room(sequence, max(0, spare))
        return min(held - sequence.num_computed, sequence.most_output - len(sequence.output) - 1)
