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
    lane that has most of it. named: some of those that wait, the next one among them."""

    name: str
    waiting: int
    running: int
    stands_for: str
    behind: str
    named: tuple[WaitingSequence, ...]


class Census(NamedTuple):
    """next_number: of the sequence that comes next. held, free: blocks; the others are evictable, which is: nobody
    holds them, and their content can be found. ref_counts: holders of each block, and evictable: which these are,
    where blocks were asked for."""

    next_number: int
    running: tuple[RunningSequence, ...]
    lanes: tuple[LaneCensus, ...]
    held: int
    free: int
    held_host_blocks: int
    ref_counts: tuple[int, ...] = ()
    evictable: tuple[int, ...] = ()


def take_census(
    next_number: int, memory: KVCacheManager, lanes: Lanes, running: Running, whole: bool, blocks: bool
) -> Census:
    """whole: name all that wait. blocks: tell whose each is."""
    pool, swap = memory.pool, memory.swap
    return Census(
        next_number,
        tuple(_running(one, memory, blocks) for one in running.sequences if one.row is not None),
        tuple(_lane(lane, whole) for lane in lanes.all()),
        pool.held,
        pool.free,
        swap.host_blocks - swap.free,
        pool.ref_counts() if blocks else (),
        pool.evictable_blocks() if blocks else (),
    )


def _running(one: Sequence, memory: KVCacheManager, with_blocks: bool) -> RunningSequence:
    assert one.row is not None, "it runs"
    blocks = tuple(memory.tables.held(one)) if with_blocks else ()
    return RunningSequence(
        one.number, one.request, one.row, one.num_tokens, one.num_computed, one.recompute_until, blocks
    )


def _lane(lane: Lane, whole: bool) -> LaneCensus:
    queue, clock = lane.queue, lane.clock
    named = queue.everyone() if whole else queue.first(NAMED)
    waiting = tuple(WaitingSequence(one.number, one.request, one.recompute_until) for one in named)
    return LaneCensus(lane.settings.name, len(queue), lane.running, clock.reason, clock.behind, waiting)
