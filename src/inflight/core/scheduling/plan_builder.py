"""The plan builder: fills the step that the strategy proposed, in the order that lanes and policies give.

One is made for each step. In turn: 1. running sequences that need one token; 2. prompts, those that run, then waiting
ones while there is a row, budget, and enough blocks above the watermark; 3. drafts, of what is left; 4. the plan.
Foreground lanes come before background lanes, but for the minimum share of these. Under a strategy that batches
requests together, ended sequences keep row and blocks and are computed as padding until the last one ends.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator

from msgspec import structs

from inflight.core.queueing.lanes import Lane
from inflight.core.request_timings import OTHER
from inflight.core.scheduling.foreground import move_late
from inflight.core.scheduling.state import SchedulerState
from inflight.core.scheduling.steady import find_steady
from inflight.core.scheduling.step import Step
from inflight.core.scheduling.step_drafts import StepDrafts
from inflight.core.sequence import Sequence
from inflight.core.strategies import StepShape
from inflight.core.types.plan import BatchPlan
from inflight.counted import UNBOUNDED


class PlanBuilder:
    def __init__(self, state: SchedulerState, number: int, shape: StepShape, ahead: bool):
        """Begin the step of this number and shape. ahead: a step before it is still being computed."""
        self._state, self._ahead = state, ahead
        self._memory, self._lanes, self._running = state.memory, state.lanes, state.running
        self._shape = _shape_for(shape, state)
        self._step = Step(number, self._shape, state)
        self._drafts = StepDrafts(state, self._step)
        self._decodes: list[Sequence] = []  # running sequences that need one token, by rank
        self._yields = frozenset(shape.yields)  # of these, those that are served after prompts
        self._prompts: list[Sequence] = []  # running sequences that need more, by rank
        self._lanes_due: Collection[str] = ()  # lanes with a deficit: their newcomers are protected
        self._reasons: dict[str, str] = {}  # what blocks the head of each lane's queue

    def build(self) -> BatchPlan | None:
        """Return the plan; None where nothing can be computed or copied now."""
        if self._ahead and self._drafts.waits:
            return None
        self._running.sort()
        self._memory.begin_step(self._step.number)
        self._state.prefix_loads.start_for_newcomers()
        held_back = self._drafts.hold_back(self._ahead)
        self._collect(held_back)
        if self._memory.has_windows:
            self._slide_windows()
        if self._has_decodes_alone():
            self._serve_decodes_alone()
            self._drafts.add(self._decodes)
            return self._emit(held_back)
        move_late(self._lanes, self._shape, self._prompts)
        held_up = self._lanes.held_up()
        self._lanes_due = {lane.settings.name for lane in held_up if lane.deficit.is_due}
        if self._shape.admit is None:
            self._state.preemption.reserve_min_share(self._shape, held_up)
            self._state.preemption.preempt_within_lanes(self._shape)
            self._serve_lanes()
        else:
            self._serve_batch()
        self._drafts.add(self._decodes)
        return self._emit(held_back)

    # -- 1. running sequences -----------------------------------------------------------------------------------

    def _collect(self, held_back: Collection[int]) -> None:
        """Collect the running sequences with tokens to compute, but for those held back for drafts of the next step."""
        for one in self._running.sequences:
            if one.preempt_pending and not one.in_flight:
                one.preempt_pending = False  # a sequence before it takes its blocks in this step, if it still needs any
            if one.num_computed == one.num_tokens + one.num_pending:
                continue  # pending tokens are sampled by plans in flight
            if one.recomputes or one.sits_out or one.waiting_for_kv:
                continue  # its step failed, its draw waits for a mask, or its blocks are being loaded
            if held_back and one.in_flight and one.number in held_back:
                continue
            uncomputed = one.num_uncomputed
            if uncomputed == 1 and one.started:  # before it has started, the executor does not know its row
                self._decodes.append(one)
            elif uncomputed:
                self._prompts.append(one)

    def _slide_windows(self) -> None:
        """Slide all windows. Prompts whose windows gained too few blocks take the rest before those behind them do."""
        for one in self._running.sequences:
            self._memory.slide_windows(one)
        left = self._step.budget - len(self._decodes)
        for one in self._prompts:
            length = min(one.num_uncomputed, left)
            if length > 0 and one.started and self._is_ready(one):
                self._running.allocate_or_preempt(one, length)
                left -= length

    def _serve_decodes(self, lanes: list[Lane], leave: int = 0) -> bool:
        """Add a token of each decode of these lanes; return whether a sequence was preempted for one.

        leave: Tokens of the budget that are left for others.
        """
        if not self._decodes:
            return False
        step, preemptions = self._step, self._state.counts.preemptions
        names, passed_over = {lane.settings.name for lane in lanes}, step.served | self._yields
        size = 0 if self._memory.has_windows else self._memory.block_size  # tables with windows are asked each time
        for sequence in self._decodes:
            # As `_is_ready`, in place: there are hundreds of them.
            if sequence.row is None or sequence.preempt_pending or sequence.finish is not None or step.budget <= leave:
                continue
            if sequence.request.lane not in names or sequence.number in passed_over or sequence.waiting_for_kv:
                continue
            new_blocks: tuple[int, ...] | None = ()
            if sequence.num_computed >= len(sequence.blocks) * size:
                new_blocks = self._running.allocate_or_preempt(sequence, planned=bool(step.chunks))
            if new_blocks is not None:
                step.add_decode(sequence, new_blocks)
        return self._state.counts.preemptions > preemptions

    def _has_decodes_alone(self) -> bool:
        """Return whether there is nothing to serve but decodes of foreground lanes."""
        if self._prompts or len(self._lanes) or self._shape.admit is not None:
            return False
        return not (self._shape.run_to_completion or self._lanes.background_runs)

    def _serve_decodes_alone(self) -> None:
        """Do what `_serve_lanes` does where nothing waits, and no lane has prompts or background work."""
        foreground = self._lanes.in_turn(background=False)
        self._serve_decodes(foreground)
        self._serve_yielding(foreground)
        self._lanes.charge_waiting({}, {}, self._running.blocks_by_lane)

    def _serve_yielding(self, lanes: list[Lane]) -> None:
        """Serve the decodes that yield to prompts what these have left; the others sit out."""
        if not self._yields:
            return
        turn, self._yields = {number: index for index, number in enumerate(self._shape.yields)}, frozenset()
        self._decodes.sort(key=lambda one: turn.get(one.number, -1))
        self._serve_decodes(lanes)
        for one in self._decodes:
            one.sat_out += one.number in turn and one.number not in self._step.served

    def _is_ready(self, sequence: Sequence) -> bool:
        """Return whether one that ran when the step began may have a chunk: it may have been preempted, and have joined
        again behind blocks that are still to be loaded."""
        if sequence.row is None or sequence.waiting_for_kv or sequence.number in self._step.served:
            return False
        return not sequence.preempt_pending and sequence.finish is None

    # -- 2. lanes: running prompts, then waiting sequences ------------------------------------------------------

    def _serve_lanes(self) -> None:
        """Serve foreground lanes, then background lanes: decodes first, then prompts.

        Of the budget, `reserved` tokens are due to background lanes: they are kept from foreground decodes, and used
        before foreground prompts. `kept` has the min_tokens of each lane with prompts.
        """
        step = self._step
        foreground = self._lanes.in_turn(background=False)
        background = [lane for lane in self._lanes.in_turn(background=True) if lane.busy]
        reserved = min(sum(lane.deficit.reserved_tokens for lane in background), step.budget)
        has_preempted = self._serve_decodes(foreground, leave=reserved)
        kept = self._kept_tokens()
        with_prompts = [lane for lane in foreground if lane.settings.name in kept]
        if reserved and with_prompts:  # now, since prompts that are computed whole might leave nothing
            without_kept = {lane.settings.name: 0 for lane in background if lane.settings.name in kept}
            has_preempted = self._serve_background(background, without_kept, has_preempted, reserved)
            for lane in background:
                lane.deficit.reserved_tokens = 0
                if not self._running:  # nothing runs, so that its newcomer lacks something else than room
                    lane.deficit.cancel_reservation()
            kept = self._kept_tokens()
        leave = 0 if any(kept.values()) else step.budget - self._even_part(with_prompts)
        self._serve_prompts(with_prompts, kept, has_preempted, leave)
        if background:
            kept_back = sum(kept.values())
            tokens = self._lanes.background_tokens(step.chunks, step.budget)
            has_preempted = self._serve_background(
                background, kept, has_preempted, tokens if with_prompts else max(tokens, reserved)
            )
            if (kept_back or reserved) and step.budget > 0:  # background lanes could not use all that they kept
                self._serve_decodes(foreground)
                self._serve_prompts(with_prompts, {}, has_preempted)
            if not step.chunks:  # foreground work has just been preempted, whose blocks these lacked
                self._serve_decodes(background)
        self._serve_yielding(foreground)
        self._lanes.charge_waiting(self._reasons, step.prompt_tokens, self._running.blocks_by_lane)

    def _even_part(self, lanes: list[Lane]) -> int:
        """Return the tokens of the step that prompts of these lanes may have beside decodes."""
        step = self._step
        if not step.chunks or self._shape.whole_prompts or not self._lanes.divides_prompts:
            return step.budget
        running = [one.num_uncomputed for one in self._prompts if self._lanes.of(one) in lanes]
        heads = [head.num_uncomputed for lane in lanes for head in lane.queue.first(1)]
        first = next(itertools.chain(running, heads), 0)
        all_tokens = sum(running) + sum(lane.queue.backlog.total.tokens for lane in lanes)
        others = all_tokens - first
        return self._lanes.step_target.even_part(first, bool(running), others, step.chunks, step.budget)

    def _serve_background(self, lanes: list[Lane], kept: dict[str, int], has_preempted: bool, tokens: int) -> bool:
        """Serve background lanes up to so many tokens; return whether a decode of this step preempted others."""
        step = self._step
        leave = step.budget - min(tokens, step.budget)
        if step.new_requests and any(lane.running for lane in lanes):
            self._running.sort()  # background sequences are preempted before those that have just joined
        has_preempted = self._serve_decodes(lanes, leave) or has_preempted
        self._serve_prompts([lane for lane in lanes if lane.settings.name in kept], kept, has_preempted, leave)
        return has_preempted

    def _kept_tokens(self) -> dict[str, int]:
        """Return the lanes with prompts to compute, and the tokens that each keeps of a step for itself."""
        inside = {one.request.lane for one in self._prompts if one.finish is None}
        return {
            lane.settings.name: lane.min_tokens
            for lane in self._lanes.all()
            if len(lane.queue) or lane.settings.name in inside
        }

    def _serve_prompts(self, lanes: list[Lane], kept: dict[str, int], has_preempted: bool, leave: int = 0) -> None:
        """Serve each lane its share by weight, then what is left, lane by lane.

        Args:
            lanes: In the order in which they are served.
            kept: Tokens kept for lanes that are still to be served; a lane that is served is taken out.
            has_preempted: A decode of this step preempted others: a newcomer would be preempted at once.
            leave: Tokens of the budget that are left for others.
        """
        if len(lanes) > 1:
            weights = sum(lane.settings.weight for lane in lanes)
            budget = max(0, self._step.budget - leave)
            for lane in lanes:
                kept.pop(lane.settings.name, None)
                share = math.ceil(budget * lane.settings.weight / weights)
                most = self._step.budget - leave - sum(kept.values())
                self._serve_lane(lane, min(most, max(share, lane.min_tokens)), has_preempted, leave)
        for lane in lanes:
            kept.pop(lane.settings.name, None)
            self._serve_lane(lane, self._step.budget - leave - sum(kept.values()), has_preempted, leave)

    def _serve_lane(self, lane: Lane, quota: int, has_preempted: bool, leave: int) -> None:
        """Serve running prompts, then waiting ones, up to a quota and to what the lane may have in a step."""
        step, name, most = self._step, lane.settings.name, lane.settings.max_tokens
        if most is not None:
            quota = min(quota, most - step.prompt_tokens[name])
        quota_end = step.budget - quota  # the budget at which the quota is used up
        # A sequence preempted now must not come back before those that have rows and blocks reserved.
        blocked = (has_preempted and not lane.deficit.reserved_rows) or self._state.preemption.blocks_newcomers(lane)
        if lane.queue.preempts and not blocked:
            self._admit_waiting(lane, quota_end, leave, before_running=True)
        self._serve_running(lane, quota_end, leave)
        self._reasons[name] = "blocks" if blocked else self._admit_waiting(lane, quota_end, leave)
        if self._shape.late:
            self._serve_running(lane, quota_end, leave, late=True)

    def _serve_running(self, lane: Lane, quota_end: int, leave: int, late: bool = False) -> None:
        """Serve running prompts: those that are not late, or those that are."""
        for sequence in self._prompts:
            if self._lanes.of(sequence) is not lane or not self._is_ready(sequence):
                continue
            left = self._left(lane, quota_end, leave) if (sequence.number in self._shape.late) is late else 0
            if left > 0 and (sequence.started or self._step.has_room_for(sequence, left, leave)):
                self._step.add_prompt_chunk(sequence, left)

    def _left(self, lane: Lane, quota_end: int, leave: int) -> int:
        """Return the tokens that the lane's prompts may have now."""
        step = self._step
        min_tokens = lane.min_tokens - step.prompt_tokens[lane.settings.name]
        return step.prompt_budget(step.budget - quota_end, min_tokens, leave)

    def _admit_waiting(self, lane: Lane, quota_end: int, leave: int, before_running: bool = False) -> str:
        """Admit sequences of a lane while possible; return what the first one that stays lacks.

        before_running: Only those that go before a prompt that runs.
        """
        step, shape, preemption = self._step, self._shape, self._state.preemption
        if not lane.queue.ready:
            return OTHER
        has_row: bool | None = self._running.has_row(lane, shape)
        if not has_row and not self._may_preempt_background(lane):
            return "rows"  # before any is ranked, or looked up in the cache
        for sequence in lane.queue.in_order():
            prompts = filter(self._is_ready, self._prompts)
            if before_running and not any(preemption.goes_before(sequence, one) for one in prompts):
                return OTHER
            if self._memory.wait_for_checkpoint(sequence):
                return OTHER  # the step in flight, behind which it has less to compute
            if has_row is None:
                has_row = self._running.has_row(lane, shape)
            if not preemption.made_room_for(sequence):
                due = has_row or self._may_preempt_background(lane)
                if self._state.prefix_loads.start(sequence, lane, due) or self._state.paused.pause(sequence, lane):
                    continue
            left = self._left(lane, quota_end, leave)
            has_room = step.has_room_for(sequence, left, leave)
            if not has_row and not (has_room and self._make_room(sequence, lane)):
                return "rows"
            if not has_room:
                return "share" if quota_end >= step.budget > leave else "budget"
            has_row = None  # one is taken
            if self._admit(sequence, lane, left):
                continue
            if not self._make_room(sequence, lane) or not self._admit(sequence, lane, left):
                return "blocks"
        return OTHER

    def _admit(self, sequence: Sequence, lane: Lane, budget: int) -> bool:
        """Give a waiting sequence a row, blocks and, unless blocks are still to be loaded, its first chunk.

        Returns:
            False where blocks are missing; then nothing has changed.
        """
        to_the_end = self._shape.run_to_completion
        spare = self._running.spare_blocks(lane) if to_the_end else self._state.spare_blocks(sequence, lane)
        if not self._memory.admit(sequence, spare, to_the_end):
            return False
        lane.queue.take(sequence)
        sequence.protected = lane.settings.name in self._lanes_due
        sequence.timings.start(self._state.time.now, lane.clock)
        self._running.join(sequence)
        self._state.preemption.joined(sequence)
        if not sequence.waiting_for_kv:
            self._step.add_prompt_chunk(sequence, budget)
        return True

    # -- making room --------------------------------------------------------------------------------------------

    def _make_room(self, head: Sequence, lane: Lane) -> bool:
        """Preempt background work for a foreground newcomer; return whether this can be admitted now. (Background work
        that has a chunk in this step already had reserved tokens: it counts as in flight.)"""
        if not self._may_preempt_background(lane):
            return False
        return self._state.preemption.preempt_background(head, lane, self._shape)

    def _may_preempt_background(self, lane: Lane) -> bool:
        return not lane.settings.background and self._lanes.background_runs

    # -- batches that start and end as one ----------------------------------------------------------------------

    def _serve_batch(self) -> None:
        """Serve the decodes of a batch, or the sequences that the strategy lets join."""
        self._serve_decodes(list(self._lanes.all()))
        for sequence in self._prompts:  # those that waited for their keys and values
            if self._is_ready(sequence):
                self._step.add_prompt_chunk(sequence, UNBOUNDED)
        reason = "window"
        for sequence in self._joining():
            lane = self._lanes.of(sequence)
            if not self._running.num_free_rows or len(self._running) >= self._shape.row_limit:
                reason = "rows"
            elif not self._admit(sequence, lane, UNBOUNDED):
                reason = "blocks"
            if reason != "window":
                break
        self._lanes.charge_all_waiting(reason, self._running.blocks_by_lane)

    def _joining(self) -> Iterator[Sequence]:
        """Yield the sequences that the strategy lets join, each followed by the other samples of its request: also
        where its blocks are still to be loaded, so that its prompt is not planned yet."""
        for sequence in self._lanes.select(self._shape.admit or ()):
            queue = self._lanes.of(sequence).queue
            siblings = tuple(queue.siblings(sequence))
            yield sequence
            if siblings and sequence.row is not None:
                queue.release_siblings(sequence)
                yield from siblings

    # -- 3. the plan --------------------------------------------------------------------------------------------

    def _emit(self, held_back: Collection[int]) -> BatchPlan | None:
        step, state, running = self._step, self._state, self._running
        transfers, loads = self._memory.finish_plan(), state.adapters.take_loads()
        if not step.chunks and not transfers and not loads:
            running.steady = None
            return None
        self._lanes.add_min_share(self._shape.token_budget - step.budget)
        running.steady = find_steady(state, step)
        return BatchPlan(
            step.number,
            tuple(step.chunks),
            tuple(step.new_requests),
            running.drain_freed_rows(),
            step.padding(len(running)) if running.run_to_completion and step.chunks else (),
            transfers,
            tuple(sorted(held_back)),
            loads,
            self._memory.early_sends(step.chunks, running.sequences),
            ended=state.take_ended(),
        )


def _shape_for(shape: StepShape, state: SchedulerState) -> StepShape:
    """Return the shape that what runs allows: a batch that runs to completion goes on by itself, and before one can
    begin, other sequences come to their ends. Inputs of encoders are computed whole."""
    running = state.running
    if not running.sequences:
        running.run_to_completion = shape.run_to_completion
    if state.memory.encoder_only:
        shape = structs.replace(shape, whole_prompts=True, early_end=0)
    if not running.sequences or shape.run_to_completion == running.run_to_completion:
        return shape
    if running.run_to_completion:
        return StepShape(UNBOUNDED, shape.row_limit, whole_prompts=True, admit=(), run_to_completion=True)
    return structs.replace(shape, admit=None, run_to_completion=False, row_limit=1)
