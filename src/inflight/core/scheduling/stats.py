"""Reports of an engine at one moment: counts for metrics, a dump for those who draw it, timings of a request.

All of it is copied, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from inflight.core.adapters import AdapterSlots
from inflight.core.estimation.output_length import PredictionError
from inflight.core.kv.manager import KVCacheDump, KVCacheManager, KVCacheStats
from inflight.core.queueing.lanes import Lane, Lanes
from inflight.core.scheduling.paused_calls import BLOCKS
from inflight.core.scheduling.state import SchedulerState
from inflight.core.sequence import Sequence
from inflight.core.speculation.speculation import SpeculationStats
from inflight.core.types.kv_transfer import FolderStats, KVExportStats
from inflight.core.types.request import Request
from inflight.core.types.sampling import GrammarStats
from inflight.core.types.suspension import SuspensionStats
from inflight.core.types.timings import ADAPTER, KV, Timings

MAX_NAMED = 24  # waiting sequences of a lane that a dump lists, unless all are asked for


@dataclass(frozen=True, slots=True)
class LaneStats:
    """Counts of one lane, in sequences: a request with n samples counts n times.

    Attributes:
        name: Of the lane.
        waiting: In its queue, deferred ones too.
        blocked_on: What its queue is blocked on: one of QUEUE_REASONS, or "other" (the step in flight).
        running: Rows that it holds.
        compiling: Sequences whose grammar is compiled before they are added; the bridge counts them.
        loading: Of the waiting, those whose adapter is not loaded.
        fetching: Of the waiting, those whose prefix is loaded from a tier or a peer.
    """

    name: str
    waiting: int
    blocked_on: str
    running: int
    compiling: int = 0
    loading: int = 0
    fetching: int = 0


@dataclass(frozen=True, slots=True)
class AdapterStats:
    """Counts of adapter slots.

    Attributes:
        slots: Of the executor.
        held: Names of the loaded adapters, with the requests that use each.
        wanted: Names of those that requests wait for.
        loads: Since the engine began.
    """

    slots: int
    held: tuple[tuple[str, int], ...]
    wanted: tuple[str, ...]
    loads: int


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Counts of this moment, and totals since the engine began.

    Attributes:
        step: The next plan's number.
        waiting, running: Sequences.
        kv: Of blocks and checkpoints.
        preemptions: In total; swap_preemptions are those whose blocks were to be kept on the host.
        lanes: Counts of each.
        recomputed_tokens: In total, after preemptions.
        prefix_queries, prefix_hits: Tokens of newcomers that were looked up and found in the prefix cache, in total.
        predictions: Of output lengths, at arrival, against the lengths of ended sequences.
        speculation: None where nothing is counted.
        grammars, folder, kv_exports, suspended: Added by the engine's loop; None where there are none.
        adapters: None without adapter slots.
    """

    step: int
    waiting: int
    running: int
    kv: KVCacheStats
    preemptions: int
    lanes: tuple[LaneStats, ...]
    swap_preemptions: int
    recomputed_tokens: int
    prefix_queries: int
    prefix_hits: int
    predictions: PredictionError
    speculation: SpeculationStats | None = None
    grammars: GrammarStats | None = None
    adapters: AdapterStats | None = None
    folder: FolderStats | None = None
    kv_exports: KVExportStats | None = None
    suspended: SuspensionStats | None = None

    @property
    def compiling(self) -> int:
        """Sequences that wait for a grammar."""
        return sum(lane.compiling for lane in self.lanes)


class RunningSequence(NamedTuple):
    """A sequence with a row. max_computed: tokens computed before its last preemption. blocks: where asked for."""

    number: int
    request: Request
    row: int
    num_tokens: int
    num_computed: int
    max_computed: int
    blocks: tuple[int, ...]


class WaitingSequence(NamedTuple):
    """A sequence in a queue. max_computed: above 0 where it was preempted."""

    number: int
    request: Request
    max_computed: int


class LaneDump(NamedTuple):
    """A lane's queue.

    Attributes:
        name: Of the lane.
        waiting, running: Sequences.
        blocked_on: What the queue is blocked on, as in `LaneStats`.
        behind: The lane that has most of it.
        named: Some waiting sequences, the next one among them, or all.
        deferred: Waiting sequences that are not in the order of the queue, counted by reason.
        background: Whether it has what others leave.
        reads_priority: Whether a request's priority has an effect.
    """

    name: str
    waiting: int
    running: int
    blocked_on: str
    behind: str
    named: tuple[WaitingSequence, ...]
    deferred: tuple[tuple[str, int], ...] = ()
    background: bool = False
    reads_priority: bool = False


class SchedulerDump(NamedTuple):
    """Sequences and blocks of this moment.

    Attributes:
        next_number: Of the next sequence.
        running, lanes: Sequences with a row, and the queues.
        kv: Blocks; each of them where blocks were asked for.
        folder: Added by the engine's loop.
    """

    next_number: int
    running: tuple[RunningSequence, ...]
    lanes: tuple[LaneDump, ...]
    kv: KVCacheDump
    folder: FolderStats | None = None


def scheduler_stats(
    step: int, state: SchedulerState, predictions: PredictionError, speculation: SpeculationStats | None
) -> SchedulerStats:
    """Return counts. step: the next plan's number."""
    counts, sequences = state.counts, state.running.sequences
    return SchedulerStats(
        step=step,
        waiting=len(state.lanes),
        running=len(sequences),
        kv=state.memory.stats(sequences),
        preemptions=counts.preemptions,
        lanes=tuple(map(_lane_stats, state.lanes.all())),
        swap_preemptions=counts.swap_preemptions,
        recomputed_tokens=counts.recomputed_tokens,
        prefix_queries=counts.prefix_queries,
        prefix_hits=counts.prefix_hits,
        predictions=predictions,
        speculation=speculation,
        adapters=_adapter_stats(state.adapters),
    )


def dump_state(next_number: int, state: SchedulerState, whole: bool, blocks: bool) -> SchedulerDump:
    """Return sequences and blocks. whole: list all waiting sequences. blocks: list each block with its holders."""
    memory = state.memory
    return SchedulerDump(
        next_number,
        tuple(_running(one, memory, blocks) for one in state.running.sequences if one.row is not None),
        tuple(_lane_dump(lane, whole) for lane in state.lanes.all()),
        memory.dump(blocks),
    )


def timings_so_far(samples: Iterable[Sequence], lanes: Lanes, now: float) -> Timings:
    """Return the timings of a request that has not ended, as if it ended now: of its first sample that is alive."""
    every = list(samples)
    one = next((sample for sample in every if sample.finish is None), every[-1])
    lane = lanes.of(one)
    timings = one.timings.so_far(now, lane.clock, lane.queue.deferred_for(one), lane.settings.name)
    timings.cached_tokens = every[0].timings.cached_tokens  # later samples also find what the first computed
    return timings.summary(one.request.arrival, len(one.prompt), len(one.output), one.request.lane)


def _lane_stats(lane: Lane) -> LaneStats:
    loading, fetching = lane.queue.deferred(ADAPTER), lane.queue.deferred(KV)
    return LaneStats(
        lane.settings.name, len(lane.queue), lane.clock.reason, lane.running, loading=loading, fetching=fetching
    )


def _adapter_stats(slots: AdapterSlots) -> AdapterStats | None:
    if not len(slots):
        return None
    loaded = tuple((adapter.name, requests) for adapter, requests in slots.loaded)
    return AdapterStats(len(slots), loaded, tuple(one.name for one in slots.wanted), slots.loads)


def _running(one: Sequence, memory: KVCacheManager, with_blocks: bool) -> RunningSequence:
    assert one.row is not None, "it runs"
    blocks = tuple(memory.blocks_of(one)) if with_blocks else ()
    return RunningSequence(
        one.number, one.request, one.row, one.num_tokens, one.num_computed, one.recompute_until, blocks
    )


def _lane_dump(lane: Lane, whole: bool) -> LaneDump:
    queue, clock = lane.queue, lane.clock
    named = queue.everyone() if whole else queue.first(MAX_NAMED)
    waiting = tuple(WaitingSequence(one.number, one.request, one.recompute_until) for one in named)
    deferred = tuple((reason, count) for reason in (ADAPTER, KV, BLOCKS) if (count := queue.deferred(reason)))
    counts = (len(queue), lane.running, clock.reason, clock.behind, waiting, deferred)
    return LaneDump(lane.settings.name, *counts, lane.settings.background, queue.policy.reads_priority)
