"""The scheduler's state: what its verbs and the plan builder act on, made anew by a reset."""

from __future__ import annotations

from msgspec import Struct, field

from inflight.core.adapters import AdapterSlots
from inflight.core.kv.manager import KVCacheManager
from inflight.core.queueing.admission import WorkAhead
from inflight.core.queueing.lanes import Lane, Lanes
from inflight.core.request_timings import StepTime
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.expected_peak import ExpectedPeak
from inflight.core.scheduling.paused_calls import PausedCalls
from inflight.core.scheduling.preemption import Preemption
from inflight.core.scheduling.prefix_loads import PrefixLoads
from inflight.core.scheduling.running import Running, SchedulerCounts, SwapRule
from inflight.core.sequence import Sequence
from inflight.core.speculation.speculation import ForcedDrafts
from inflight.core.types.length_distribution import EndedOutput
from inflight.core.types.request import Request


class SchedulerState(Struct, eq=False):
    """Collaborators of one scheduler.

    Attributes:
        time: Of the verb in progress.
        counts: Since the engine began.
        memory: KV blocks.
        lanes: Waiting sequences.
        running: Sequences with a row.
        adapters: Adapter slots.
        prefix_loads: Waiting sequences whose prefix is loaded.
        paused: Calls of programs that wait for acting ones.
        preemption: Which running sequences make room for waiting ones.
        peak: Memory that the batch is expected to need; None: the watermark alone bounds who joins.
        speculation: Which sequences have drafts; None where there are none, or they cannot be taken back.
        reports_ends: Whether the next plan says which outputs have ended.
        last_full_step: The last one that had no budget left for drafts.
        ended: Outputs that the next plan reports.
    """

    time: StepTime
    counts: SchedulerCounts
    memory: KVCacheManager
    lanes: Lanes
    running: Running
    adapters: AdapterSlots
    prefix_loads: PrefixLoads
    paused: PausedCalls
    preemption: Preemption
    peak: ExpectedPeak | None
    speculation: ForcedDrafts | None
    reports_ends: bool = False
    last_full_step: int = -1
    ended: list[EndedOutput] = field(default_factory=list)

    def spare_blocks(self, newcomer: Sequence, lane: Lane) -> int:
        """Return the blocks that a newcomer of a lane must leave available: by the watermark, and by the expected peak
        unless others were preempted for it, as victims are chosen by the watermark."""
        spare = self.running.spare_blocks(lane)
        if self.peak is None or self.preemption.made_room_for(newcomer):
            return spare
        return max(spare, self.peak.spare_blocks(newcomer, lane))

    def load_before(self, request: Request, config: SchedulerConfig) -> WorkAhead:
        """Return the work before a newcomer: of its own lane, and of those that come before it."""
        before, capacity = self.lanes.before(request.lane), config.capacity
        waiting = [one for lane in before for one in lane.queue.everyone()]
        served = [one for one in self.running.sequences if one.finish is None and self.lanes.of(one) in before]
        queued_tokens = sum(lane.queue.backlog.total.tokens for lane in before)
        return WorkAhead(
            ahead=len(waiting),
            prompt_tokens=queued_tokens + sum(one.num_uncomputed for one in served if one.num_uncomputed > 1),
            remaining=[max(1.0, one.predicted - len(one.output)) for one in served],
            remaining_ahead=[max(1.0, one.predicted - len(one.output)) for one in waiting],
            free_rows=capacity.max_rows - len(served),
            rows=capacity.max_rows,
            budget=min(config.token_budget, capacity.max_model_len),
            context=sum(one.num_computed for one in served) / max(1, len(served)),
        )

    def take_ended(self) -> tuple[EndedOutput, ...]:
        ended = tuple(self.ended)
        self.ended.clear()
        return ended


def _speculation(config: SchedulerConfig) -> ForcedDrafts | None:
    """Return which sequences have drafts; None where none has."""
    if config.capacity.state_snapshots:
        return None  # recurrent state cannot be taken back, where an answer ends among its drafts
    if config.speculation is None and not config.forces_tokens:
        return None
    return ForcedDrafts(config.latency, config.speculation)


def new_state(
    config: SchedulerConfig, memory: KVCacheManager, lanes: Lanes, time: StepTime, counts: SchedulerCounts
) -> SchedulerState:
    """Return the state of an engine without requests. memory, lanes: empty ones."""
    capacity, latency = config.capacity, config.latency
    swap_rule = SwapRule(config.preemption, latency, capacity.copy_seconds)
    running = Running(memory, lanes, time, counts, swap_rule, capacity.max_rows, config.watermark)
    prefix_loads = PrefixLoads(memory, lanes, running, time)
    return SchedulerState(
        time,
        counts,
        memory,
        lanes,
        running,
        AdapterSlots(capacity.adapter_slots, memory.new_transfer_id),
        prefix_loads,
        PausedCalls(memory, lanes, running, time),
        Preemption(memory, lanes, running, prefix_loads),
        ExpectedPeak(memory, lanes, running, config.predictor) if config.allocation == "expected-peak" else None,
        _speculation(config),
        config.reports_ends,
    )
