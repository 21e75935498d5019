"""The step builder: fills the step that the strategy proposed, in the order that lanes and policies gave.

The mechanism of batching: with `running` it alone hands out rows, blocks and token budget, and keeps the accounts.
Foreground lanes come before background lanes; in each, running sequences that need one token come first, then prompts:
those that run, then waiting ones while there is a row, budget, and enough blocks to stay above the watermark. Under a
strategy that batches requests together, ended sequences linger: they keep row and blocks and are computed as padding
until the last one ends. With speculation, decodes have drafts of what the step has left: budget that nobody else took,
and blocks above the watermark. Knows nothing of requests' ends (`scheduler`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import replace

from inflight.core.adapters import AdapterSlots
from inflight.core.kv.manager import KVCacheManager
from inflight.core.queueing.lanes import Lane, Lanes
from inflight.core.queueing.min_share import CHUNK
from inflight.core.request_timings import OTHER
from inflight.core.scheduling.admission_preemption import AdmissionPreemption
from inflight.core.scheduling.chunk_maker import ChunkMaker
from inflight.core.scheduling.draft_planner import DraftPlanner
from inflight.core.scheduling.prefix_fetching import PrefixFetching
from inflight.core.scheduling.running import Running
from inflight.core.scheduling.step_draft import StepDraft
from inflight.core.scheduling.wait_reasons import WaitReasons
from inflight.core.sequence import Sequence
from inflight.core.speculation.speculation import Speculation
from inflight.core.strategies import StepShape
from inflight.core.types.plan import BatchPlan
from inflight.counted import UNBOUNDED


class StepBuilder:
    def __init__(
        self,
        memory: KVCacheManager,
        lanes: Lanes,
        running: Running,
        adapters: AdapterSlots,
        speculation: Speculation | None = None,
    ):
        self.running = running
        self.adapters = adapters
        self._due: set[str] = set()  # lanes whose newcomers are protected
        self.run_to_completion = False  # whether what runs is one batch that starts and ends together
        self.chunks = ChunkMaker(memory, lanes, adapters)
        self._memory, self._has_windows, self._has_state = memory, memory.has_windows, memory.has_state
        self._lanes = lanes
        self._fetching = PrefixFetching(memory, lanes, running) if memory.has_sources else None
        self._admission_preemption = AdmissionPreemption(memory, lanes, running, self._fetching)
        self._wait_reasons = WaitReasons(lanes, running)
        self._drafts = None if speculation is None else DraftPlanner(speculation, memory, lanes, running)

    def arrived(self, sequence: Sequence) -> None:
        """It has joined its queue."""
        if self._fetching is not None:
            self._fetching.arrived(sequence)

    def rejoin(self, now: float) -> None:
        """Whoever stood apart for its prefix, and need not any longer, waits with the others."""
        if self._fetching is not None:
            self._fetching.rejoin(now)

    def begin_fetching(self, now: float) -> None:
        """What newcomers' prefixes go on with begins to be brought with the plan under construction, before it takes a
        block; asked again it does nothing."""
        if self._fetching is not None:
            self._fetching.begin(now)

    def compose(self, step: int, shape: StepShape, now: float, ahead: bool) -> BatchPlan | None:
        """The plan of this step, or None when no token can be computed now, and nothing copied. ahead: a step before it
        is still being computed."""
        if not self.running:
            self.run_to_completion = shape.run_to_completion
        drafts = None if self.run_to_completion else self._drafts  # there, drafts would lengthen all rows' padding
        if ahead and drafts is not None and drafts.waits(step):
            return None
        shape = self._kept_to(shape)
        draft = StepDraft(step, shape)
        self.running.sort(now)
        self._memory.begin_step(step)
        self.begin_fetching(now)
        held = () if drafts is None else drafts.begin_step(step, ahead)
        self._find_uncomputed(draft, held)
        if self._has_windows:
            self._slide(draft, now)
        self._due = {lane.settings.name for lane in self._lanes.held_up() if lane.deficit.is_due}
        if shape.admit is None:
            self._reserve_min_share(shape, now)
            self._make_way(shape, now)
            self._serve_lanes(draft, now)
        else:
            self._serve_together(draft, now)
        if drafts is not None:
            drafts.add(draft, now)
        transfers, loads = self._memory.finish_plan(), self.adapters.take_loads()
        if not draft.chunks and not transfers and not loads:
            return None
        self._lanes.add_min_share(sum(chunk.length for chunk in draft.chunks))
        padding = draft.padding(len(self.running)) if self.run_to_completion and draft.chunks else ()
        freed = self.running.drain_freed_rows()
        chunks, early = tuple(draft.chunks), self._memory.early_sends(draft.chunks, self.running.sequences)
        return BatchPlan(
            step, chunks, tuple(draft.new_requests), freed, padding, transfers, tuple(sorted(held)), loads, early
        )

    def _find_uncomputed(self, draft: StepDraft, held: Collection[int]) -> None:
        """Who needs tokens computed. Those that are `held` are not planned ahead: they are drafted for behind what is
        in flight. Of those whose blocks were wanted while something of them was in flight, whoever
        still needs them ranks before them and takes them in this step."""
        for one in self.running.sequences:
            if one.preempt_pending and not one.in_flight:
                one.preempt_pending = False
            if one.recomputes or one.sits_out or one.waiting_for_kv:
                continue
            if one.num_computed == one.num_tokens + one.num_pending:
                continue
            if held and one.in_flight and one.number in held:
                continue
            if one.num_uncomputed == 1 and one.started:
                draft.decodes.append(one)
            elif one.num_uncomputed:
                draft.prompts.append(one)

    def _slide(self, draft: StepDraft, now: float) -> None:
        """Everybody's windows slide on. Prompts whose windows gained too little by that, since others hold the same
        blocks, take what they lack before those that rank behind them have their tokens."""
        for one in self.running.sequences:
            self._memory.slide_windows(one)
        left = draft.budget - len(draft.decodes)
        for one in draft.prompts:
            length = min(one.num_uncomputed, left)
            if length > 0 and one.started and self._is_ready(draft, one):
                self.running.allocate_or_preempt(one, now, length)
                left -= length

    def _kept_to(self, shape: StepShape) -> StepShape:
        """What runs stays of its kind, whatever the strategy says meanwhile (another one may have taken over): a batch
        that runs to completion goes on by itself; and before one can begin, the others come to their ends. Where texts
        are whole, so are prompts."""
        if self._memory.encoder_only:
            shape = replace(shape, whole_prompts=True, early_end=0)
        if not self.running or shape.run_to_completion == self.run_to_completion:
            return shape
        if self.run_to_completion:
            return StepShape(UNBOUNDED, shape.row_limit, whole_prompts=True, admit=(), run_to_completion=True)
        return replace(shape, admit=None, run_to_completion=False, row_limit=1)

    def ended(self, sequence: Sequence) -> None:
        """A sequence that holds a row has its end, and nothing of it is in flight."""
        if self.run_to_completion:
            self.end_batch()
        else:
            self.running.leave(sequence)

    def end_batch(self) -> None:
        """Have the sequences of a batch that ends together leave, if all of them have their ends."""
        if all(one.finish is not None and not one.in_flight for one in self.running.sequences):
            for one in tuple(self.running.sequences):
                self.running.leave(one)

    def _reserve_min_share(self, shape: StepShape, now: float) -> None:
        """Reserve what is due to background lanes before others are served."""
        for lane in self._lanes.in_turn(background=True):
            lane.deficit.reserve()
        for lane in self._lanes.held_up():
            deficit, most = lane.deficit, lane.settings.max_rows
            own = [one for one in self.running.sequences if one.finish is None and self._lanes.of(one) is lane]
            wants_chunk = any(one.protected and one.num_uncomputed > 1 for one in own)
            if deficit.is_due:
                unprotected = next((one for one in own if not one.protected), None)
                if unprotected is not None:
                    unprotected.protected = True
                    wants_chunk = wants_chunk or unprotected.num_uncomputed > 1
                elif most is None or lane.running < most:
                    head = next(lane.queue.in_order(now), None)
                    if head is not None:
                        deficit.reserve(rows=1, blocks=self._memory.blocks_to_admit(head))
                        wants_chunk = True
            tokens = sum(one.protected and one.num_uncomputed == 1 for one in own)
            tokens += max(CHUNK, int(deficit.tokens)) if wants_chunk else 0
            deficit.reserved_tokens = min(tokens, self._lanes.min_share.max_tokens(shape.token_budget))

    def _make_way(self, shape: StepShape, now: float) -> None:
        """The first of a foreground lane pushes out others of its lane where the policy allows it, before those have
        their tokens. (Background sequences have theirs later, and go when the head has its: `_preempt_background`.)"""
        for lane in self._lanes.in_turn(background=False):
            head = next(lane.queue.in_order(now), None) if lane.queue.preempts else None
            if head is not None and (tokens := self._prompt_tokens(lane, shape)) > 0:
                self._admission_preemption.preempt_for(head, lane, shape, now, tokens)

    def _prompt_tokens(self, lane: Lane, shape: StepShape) -> int:
        """What decodes, and what other lanes keep, leave of the step."""
        decodes = sum(
            one.num_uncomputed == 1 and not self._lanes.of(one).settings.background for one in self.running.sequences
        )
        kept = sum(other.least_tokens for other in self._lanes.all() if other is not lane and other.busy)
        return shape.token_budget - decodes - kept

    # -- running sequences that need one token ------------------------------------------------------------------

    def _serve_decodes(self, draft: StepDraft, lanes: list[Lane], now: float) -> bool:
        """Returns whether somebody was preempted: memory is short, and a newcomer would only push out the next one."""
        preemptions = self.running.preemptions
        mine = {lane.settings.name for lane in lanes}
        for sequence in draft.decodes:
            # As `_is_ready`, in place: there are hundreds of them.
            if sequence.row is None or sequence.preempt_pending or sequence.finish is not None or draft.budget <= 0:
                continue
            if sequence.request.lane not in mine or sequence.number in draft.served or sequence.waiting_for_kv:
                continue
            new_blocks = self.running.allocate_or_preempt(sequence, now, planned=bool(draft.chunks))
            if new_blocks is not None:
                self.chunks.add(draft, sequence, 1, new_blocks, now)
        return self.running.preemptions > preemptions

    # -- prompts ------------------------------------------------------------------------------------------------

    def _serve_lanes(self, draft: StepDraft, now: float) -> None:
        """Foreground lanes, then background lanes with what those leave and their minimum share: decodes first, then
        prompts."""
        foreground, background = self._lanes.in_turn(background=False), self._lanes.in_turn(background=True)
        reserved = min(sum(lane.deficit.reserved_tokens for lane in background), draft.budget)
        draft.budget -= reserved
        short = self._serve_decodes(draft, foreground, now)
        draft.budget += reserved
        kept = self._kept_tokens(draft)
        lanes_with_prefill = [lane for lane in foreground if lane.settings.name in kept]
        if reserved and lanes_with_prefill:  # now, since prompts that are computed whole might leave nothing
            theirs = {lane.settings.name: 0 for lane in background if lane.settings.name in kept}
            short = self._serve_background(draft, background, theirs, short, reserved, now)
            for lane in background:
                lane.deficit.reserved_tokens = 0
                if not self.running:  # whatever holds its newcomer up, nobody else need wait for it
                    lane.deficit.reserve()
            kept = self._kept_tokens(draft)
        self._serve_prompts(draft, lanes_with_prefill, kept, short, now)
        if any(lane.busy for lane in background):
            kept_back = sum(kept.values())
            tokens = self._lanes.background_tokens(draft.chunks, draft.budget)
            tokens = tokens if lanes_with_prefill else max(tokens, reserved)
            short = self._serve_background(draft, background, kept, short, tokens, now)
            if (kept_back or reserved) and draft.budget > 0:  # background lanes could not use all that they kept
                self._serve_decodes(draft, foreground, now)
                self._serve_prompts(draft, lanes_with_prefill, {}, short, now)
            if (
                not draft.chunks
            ):  # what was kept lacked blocks, and the last of the foreground has just given up its own
                self._serve_decodes(draft, background, now)
        self._wait_reasons.charge(now, draft.lacks, draft.used)

    def _serve_background(
        self, draft: StepDraft, lanes: list[Lane], kept: dict[str, int], short: bool, tokens: int, now: float
    ) -> bool:
        """With so many tokens. Returns whether somebody was preempted, by them or before them."""
        withheld = draft.budget - min(tokens, draft.budget)
        draft.budget -= withheld
        if draft.new_requests and any(lane.running for lane in lanes):
            self.running.sort(now)  # background ones give way to those that have just joined, too
        short = self._serve_decodes(draft, lanes, now) or short
        self._serve_prompts(draft, [lane for lane in lanes if lane.settings.name in kept], kept, short, now)
        draft.budget += withheld
        return short

    def _kept_tokens(self, draft: StepDraft) -> dict[str, int]:
        """The lanes with prompts to compute, and what each keeps of a step for itself."""
        inside = {one.request.lane for one in draft.prompts if one.finish is None}
        kept = {}
        for lane in self._lanes.all():
            if len(lane.queue) or lane.settings.name in inside:
                kept[lane.settings.name] = lane.least_tokens
        return kept

    def _serve_prompts(
        self, draft: StepDraft, lanes: list[Lane], kept: dict[str, int], short: bool, now: float
    ) -> None:
        """Each lane its share by weight, then what is left in turn. kept: for lanes whose turn is still to come."""
        weights = sum(lane.settings.weight for lane in lanes)
        budget = max(0, draft.budget)
        for lane in lanes:
            kept.pop(lane.settings.name, None)
            share = math.ceil(budget * lane.settings.weight / weights)
            most = draft.budget - sum(kept.values())
            self._serve_lane(draft, lane, min(most, max(share, lane.least_tokens)), short, now)
        if len(lanes) > 1:
            for lane in lanes:
                self._serve_lane(draft, lane, draft.budget - sum(kept.values()), short, now)

    def _serve_lane(self, draft: StepDraft, lane: Lane, quota: int, short: bool, now: float) -> None:
        """Running prompts, then waiting ones, up to `quota` tokens and to what the lane may have in a step."""
        name, most = lane.settings.name, lane.settings.max_tokens
        if most is not None:
            quota = min(quota, most - draft.used[name])
        budget_floor = draft.budget - quota  # the budget at which the quota is used up
        for sequence in draft.prompts:
            if self._lanes.of(sequence) is not lane or not self._is_ready(draft, sequence):
                continue
            left = self._left(draft, lane, budget_floor)
            if left > 0 and (sequence.started or draft.has_room_for(sequence, left)):
                self._add_prompt(draft, sequence, lane, left, now)
        # Whoever was promised the next row and blocks has them before who is preempted now comes back.
        waits = (short and not lane.deficit.reserved_rows) or self._admission_preemption.keeps_back(lane)
        draft.lacks[name] = "blocks" if waits else self._admit_from(draft, lane, budget_floor, now)

    @staticmethod
    def _is_ready(draft: StepDraft, sequence: Sequence) -> bool:
        """Whether one that ran when the step began may have a chunk: it may have lost its row since, and got another
        one for which content is still to be loaded."""
        if sequence.row is None or sequence.waiting_for_kv or sequence.number in draft.served:
            return False
        return not sequence.preempt_pending and sequence.finish is None

    @staticmethod
    def _left(draft: StepDraft, lane: Lane, budget_floor: int) -> int:
        """Tokens that the lane's prompts may have now, of a quota that is used up at this budget."""
        return draft.left(draft.budget - budget_floor, lane.least_tokens - draft.used[lane.settings.name])

    def _admit_from(self, draft: StepDraft, lane: Lane, budget_floor: int, now: float) -> str:
        """Admit while possible; returns what the first one that stays is waiting for."""
        shape = draft.shape
        if not self.running.has_row(lane, shape) and not self._can_preempt_background(lane):
            return "rows" if lane.queue.ready else OTHER  # before anybody is ranked, or looked up in the cache
        for sequence in lane.queue.in_order(now):
            if self._has_state and self._memory.checkpoint_is_coming(sequence):
                self._memory.wait_for_checkpoint(sequence)
                return OTHER  # the step under way, behind which it has less to compute
            has_row = self.running.has_row(lane, shape)
            if self._fetching is not None and not self._admission_preemption.gave_way_to(sequence):
                is_due = has_row or self._can_preempt_background(lane)
                if self._fetching.fetches(sequence, lane, now, is_due):
                    continue
            left = self._left(draft, lane, budget_floor)
            has_room = draft.has_room_for(sequence, left)
            if not has_row and not (has_room and self._preempt_background(sequence, lane, shape, now)):
                return "rows"
            if not has_room:
                return "share" if budget_floor >= draft.budget > 0 else "budget"
            if self._admit(draft, sequence, lane, now, left):
                continue
            if not self._preempt_background(sequence, lane, shape, now):
                return "blocks"
            if not self._admit(draft, sequence, lane, now, left):
                return "blocks"
        return OTHER

    def _preempt_background(self, sequence: Sequence, lane: Lane, shape: StepShape, now: float) -> bool:
        """Background work makes room for a foreground newcomer; it is planned after foreground work, so that it has no
        chunk in this step yet."""
        preemption = self._admission_preemption
        return self._can_preempt_background(lane) and preemption.preempt_background(sequence, lane, shape, now)

    def _can_preempt_background(self, lane: Lane) -> bool:
        """Whether there is any background work that would make room for this lane's."""
        return not lane.settings.background and any(one.running for one in self._lanes.in_turn(background=True))

    def _serve_together(self, draft: StepDraft, now: float) -> None:
        """A batch that starts and ends as one: its decodes, or those that the strategy lets join."""
        self._serve_decodes(draft, list(self._lanes.all()), now)
        for sequence in draft.prompts:  # those that waited for their keys and values
            if self._is_ready(draft, sequence):
                self._add_prompt(draft, sequence, self._lanes.of(sequence), UNBOUNDED, now)
        reason = "window"
        for sequence in self._joining(draft.shape, now):
            lane = self._lanes.of(sequence)
            if not self.running.free_rows or len(self.running) >= draft.shape.row_limit:
                reason = "rows"
            elif not self._admit(draft, sequence, lane, now, UNBOUNDED):
                reason = "blocks"
            if reason != "window":
                break
        self.stand_still(now, reason)

    def stand_still(self, now: float, reason: str = "window") -> None:
        """Whoever waits from now on waits for this."""
        self._wait_reasons.charge_all(now, reason)

    def _joining(self, shape: StepShape, now: float) -> Iterator[Sequence]:
        """Yield those that the strategy lets join, each with its further samples, which belong to the same batch: also
        where the blocks of the first one are still to be loaded, so that its prompt is not planned yet."""
        for sequence in self._lanes.select(shape.admit or ()):
            queue = self._lanes.of(sequence).queue
            siblings = tuple(queue.siblings(sequence))
            yield sequence
            if siblings and sequence.row is not None:
                queue.release_siblings(sequence, now)
                yield from siblings

    def _admit(self, draft: StepDraft, sequence: Sequence, lane: Lane, now: float, left: int) -> bool:
        """Row, blocks and, unless content of them is still to be loaded, the first chunk for a waiting sequence; False
        (nothing changed) where blocks are missing."""
        if not self._memory.admit(sequence, self.running.spare_for(lane), to_the_end=draft.shape.run_to_completion):
            return False
        lane.queue.take(sequence)
        sequence.protected = lane.settings.name in self._due
        sequence.timings.start(now, lane.clock)
        self.running.join(sequence)
        self._admission_preemption.joined(sequence)
        if not sequence.waiting_for_kv:
            self._add_prompt(draft, sequence, lane, left, now)
        return True

    def _add_prompt(self, draft: StepDraft, sequence: Sequence, lane: Lane, left: int, now: float) -> None:
        """As much of a prompt as fits into what is left."""
        length = draft.share(sequence.num_uncomputed, left, lane.settings.chunk)
        # Groups without a window have their blocks since it joined.
        if self._has_windows and self.running.allocate_or_preempt(sequence, now, length) is None:
            return
        new_blocks = () if sequence.started else self.chunks.start_row(draft, sequence)
        self.chunks.add(draft, sequence, length, new_blocks, now)
        draft.used[lane.settings.name] += length
        # Whoever can only follow when this prompt is computed (further samples of it, background work) ends no step.
        if draft.chunks[-1].sample and not sequence.sample_index and not lane.settings.background:
            draft.completes = True
