"""A census: who runs, who waits for what, and who holds which block, at one moment, for those who draw it; and the
account of one request while it lives.

Knows whom to ask; changes nothing. What it copies it copies whole, in time that a step does not notice: of those that
wait it names the first few, unless all are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from inflight.core.kv.manager import HostDump, KVCacheManager
from inflight.core.queueing.lanes import Lane, Lanes
from inflight.core.scheduling.state import SchedulerState
from inflight.core.sequence import Sequence
from inflight.core.types.kv_transfer import FolderStats
from inflight.core.types.request import Request
from inflight.core.types.timings import ADAPTER, KV, Timings

NAMED = 24  # of those that wait in a lane


class RunningSequence(NamedTuple):
    """most_computed: tokens that were computed before, as many as a preemption took. blocks: of all KV groups, where
    they were asked for."""

    number: int
    request: Request
    row: int
    num_tokens: int
    num_computed: int
    most_computed: int
    blocks: tuple[int, ...]


class WaitingSequence(NamedTuple):
    """most_computed: above 0 where it was preempted."""

    number: int
    request: Request
    most_computed: int


class LaneCensus(NamedTuple):
    """waiting, running: sequences. stands_for: what its queue stands still for (QUEUE_REASONS, or "other"), behind: the
    lane that has most of it. named: some of those that wait, the next one among them. apart: how many of the waiting
    stand apart from the queue, and for what. background: it has what others leave; reads_priority: a request's priority
    means something here."""

    name: str
    waiting: int
    running: int
    stands_for: str
    behind: str
    named: tuple[WaitingSequence, ...]
    apart: tuple[tuple[str, int], ...] = ()
    background: bool = False
    reads_priority: bool = False


class Census(NamedTuple):
    """next_number: of the sequence that comes next. held, free: blocks; the others are evictable, which is: nobody
    holds them, and their content can be found. ref_counts: holders of each block, evictable: which these are, moving:
    those that a transfer holds, and host, where blocks were asked for. folder: what lies in one, which the engine's
    loop adds."""

    next_number: int
    running: tuple[RunningSequence, ...]
    lanes: tuple[LaneCensus, ...]
    held: int
    free: int
    held_host_blocks: int
    ref_counts: tuple[int, ...] = ()
    evictable: tuple[int, ...] = ()
    moving: tuple[int, ...] = ()
    host: HostDump | None = None
    folder: FolderStats | None = None


def take_census(next_number: int, state: SchedulerState, whole: bool, blocks: bool) -> Census:
    """whole: name all that wait. blocks: list each with its holders."""
    memory, kv = state.memory, state.memory.dump(blocks)
    return Census(
        next_number,
        tuple(_running(one, memory, blocks) for one in state.running.sequences if one.row is not None),
        tuple(_lane(lane, whole) for lane in state.lanes.all()),
        kv.held,
        kv.free,
        kv.used_host,
        kv.ref_counts,
        kv.evictable,
        kv.moving,
        kv.host,
    )


def _running(one: Sequence, memory: KVCacheManager, with_blocks: bool) -> RunningSequence:
    assert one.row is not None, "it runs"
    blocks = tuple(memory.blocks_of(one)) if with_blocks else ()
    return RunningSequence(
        one.number, one.request, one.row, one.num_tokens, one.num_computed, one.recompute_until, blocks
    )


def _lane(lane: Lane, whole: bool) -> LaneCensus:
    queue, clock = lane.queue, lane.clock
    named = queue.everyone() if whole else queue.first(NAMED)
    waiting = tuple(WaitingSequence(one.number, one.request, one.recompute_until) for one in named)
    apart = tuple((reason, count) for reason in (ADAPTER, KV) if (count := queue.deferred(reason)))
    counts = (len(queue), lane.running, clock.reason, clock.behind, waiting, apart)
    return LaneCensus(lane.settings.name, *counts, lane.settings.background, queue.policy.reads_priority)


def take_account(samples: Iterable[Sequence], lanes: Lanes, now: float) -> Timings:
    """Of a living request, as it were if it ended now: of the first of its samples that is alive; its end will be told
    of the last one."""
    every = list(samples)
    one = next((sample for sample in every if sample.finish is None), every[-1])
    request, timings = one.request, one.timings
    lane = lanes.of(one)
    timings = timings.so_far(now, lane.clock, lane.queue.deferred_for(one), lane.settings.name)
    timings.cached_tokens = every[0].timings.cached_tokens  # later samples also find what the first computed
    return timings.summary(request.arrival, len(one.prompt), len(one.output), request.lane)
