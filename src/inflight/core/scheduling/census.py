"""A census: who runs, who waits for what, and who holds which block, at one moment, for those who draw it.

Knows whom to ask; changes nothing. What it copies it copies whole, in time that a step does not notice: of those that
wait it names the first few, unless all are asked for.
"""

from __future__ import annotations

from typing import NamedTuple

from inflight.core.kv.manager import KVCacheManager
from inflight.core.queueing.lanes import Lane, Lanes
from inflight.core.scheduling.running import Running
from inflight.core.sequence import Sequence
from inflight.core.types.request import Request

NAMED = 24  # of those that wait in a lane


class RunningSequence(NamedTuple):
    """most_computed: tokens that were computed before, as many as a preemption took. blocks: of all KV groups."""

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
    lane that has most of it. named: some of those that wait, the next one among them."""

    name: str
    waiting: int
    running: int
    stands_for: str
    behind: str
    named: tuple[WaitingSequence, ...]


class Census(NamedTuple):
    """next_number: of the sequence that comes next. ref_counts: holders of each block. evictable: blocks that nobody
    holds, and whose content can be found."""

    next_number: int
    running: tuple[RunningSequence, ...]
    lanes: tuple[LaneCensus, ...]
    ref_counts: tuple[int, ...]
    evictable: tuple[int, ...]
    held_host_blocks: int


def take_census(next_number: int, memory: KVCacheManager, lanes: Lanes, running: Running, whole: bool) -> Census:
    """whole: name all that wait."""
    pool, swap = memory.pool, memory.swap
    return Census(
        next_number,
        tuple(_running(one, memory) for one in running.sequences if one.row is not None),
        tuple(_lane(lane, whole) for lane in lanes.all()),
        pool.ref_counts(),
        pool.evictable_blocks(),
        swap.host_blocks - swap.free,
    )


def _running(one: Sequence, memory: KVCacheManager) -> RunningSequence:
    assert one.row is not None, "it runs"
    blocks = tuple(memory.tables.held(one))
    return RunningSequence(
        one.number, one.request, one.row, one.num_tokens, one.num_computed, one.recompute_until, blocks
    )


def _lane(lane: Lane, whole: bool) -> LaneCensus:
    queue, clock = lane.queue, lane.clock
    named = queue.everyone() if whole else queue.first(NAMED)
    waiting = tuple(WaitingSequence(one.number, one.request, one.recompute_until) for one in named)
    return LaneCensus(lane.settings.name, len(queue), lane.running, clock.reason, clock.behind, waiting)
