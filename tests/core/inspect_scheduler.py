"""Looks inside a scheduler and says what is wrong with it. The only test module that knows private attributes.

`check` holds the numbered invariants (docs/invariants.md) that are about the state between two verbs; those about
plans and events are watched by `harness`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace

from inflight.core.kv.acting_sessions import ActingSessions
from inflight.core.kv.prefix_cache import CachedChain
from inflight.core.kv.prefix_sharing import Lookup
from inflight.core.kv.sessions import Session
from inflight.core.queueing.lanes import MAX_DEFICIT
from inflight.core.queueing.waiting_queue import WaitingQueue
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.sequence import Sequence, SequenceView
from inflight.core.types.kv_blocks import SharedRoot, first_seen
from inflight.core.types.plan import HOST, BatchPlan, Capacity, NewRequest


def running(scheduler: Scheduler) -> list[Sequence]:
    """Sequences with a row, in the order of their ranks as of the last plan."""
    return scheduler._running.sequences


def samples(scheduler: Scheduler, request_id: str) -> list[Sequence]:
    return scheduler._requests.samples(request_id)


def alive(scheduler: Scheduler) -> list[Sequence]:
    """Every sequence that the scheduler still knows, ended ones with tokens in flight too."""
    groups = (samples(scheduler, request_id) for request_id in scheduler._requests)
    known = {sequence.number: sequence for group in groups for sequence in group}
    known.update((sequence.number, sequence) for sequence in running(scheduler))
    return list(known.values())


def row_of(view: SequenceView) -> NewRequest:
    """Return what an executor has of a sequence that takes a row."""
    one = view._sequence
    tokens, request = one.token_slice(0, one.num_tokens), one.request
    prompt, grammar = len(one.prompt), request.grammar
    return NewRequest(0, tokens, prompt, request.params, request.seed, one.sample_index, one.banned, grammar=grammar)


def waiting(scheduler: Scheduler) -> set[int]:
    """Numbers of the sequences that could be admitted."""
    return {number for queue in _queues(scheduler) for number in queue._counted}


def held_back(scheduler: Scheduler) -> set[int]:
    """Numbers of the siblings that wait for their prompt to be computed."""
    return {one.number for queue in _queues(scheduler) for siblings in queue._held.values() for one in siblings}


def findable(scheduler: Scheduler) -> list[tuple[SharedRoot, tuple[int, ...], bool]]:
    """Return the root, all tokens up to its end, and whether it is on the host, of each block in the prefix cache."""
    prefix, found = scheduler._memory._prefix, []
    for cached in prefix._by_node.values():
        tokens, at = (), cached
        while at is not None and min(at.token_ids) >= 0:
            tokens, before = at.token_ids + tokens, at.key[0]
            if isinstance(before, SharedRoot):
                found.append((before, tokens, cached.block is None))
            at = prefix._by_node.get(before) if isinstance(before, int) else None
    return found


def batches_together(scheduler: Scheduler) -> bool:
    """Whether what runs is one batch that starts and ends as one."""
    return bool(running(scheduler)) and scheduler._running.run_to_completion


def protected(scheduler: Scheduler) -> set[int]:
    """Numbers of the sequences that their lanes' minimum share protects."""
    return {one.number for one in running(scheduler) if one.protected and one.finish is None}


def wanting(scheduler: Scheduler) -> set[int]:
    """Numbers of those that run and need a block for their next token."""
    size = scheduler._memory.block_size
    return {
        one.number
        for one in running(scheduler)
        if any(one.num_computed == len(table) * size for table in one.block_tables)
    }


def held(scheduler: Scheduler, sequence: Sequence) -> list[int]:
    """Its blocks, of all KV groups."""
    return scheduler._memory.blocks_of(sequence)


def with_unsent_blocks(scheduler: Scheduler) -> set[int]:
    """Numbers of those that run and have blocks, of some KV group, for which they had no chunk yet."""
    return {
        one.number
        for one in running(scheduler)
        if scheduler._memory.has_windows and one.num_sent_blocks != [len(table) for table in one.block_tables]
    }


def evictable_host_blocks(scheduler: Scheduler) -> int:
    """Host blocks with content for which no preempted sequence waits."""
    return len(scheduler._memory._host._evictable)


def num_kept_blocks(scheduler: Scheduler, sequence: Sequence) -> int:
    """Blocks with content for which a preempted sequence waits."""
    return len(scheduler._memory._host._waiting.get(sequence.number, ()))


def is_storing(scheduler: Scheduler) -> bool:
    """Whether device blocks wait to be free until their content is stored."""
    return scheduler._memory.is_storing


def ref_count(scheduler: Scheduler, block: int) -> int:
    """Sequences and transfers that hold a block."""
    return scheduler._memory._pool.ref_count(block)


def _queues(scheduler: Scheduler) -> list[WaitingQueue]:
    return [lane.queue for lane in scheduler._lanes.all()]


def services(scheduler: Scheduler) -> list[float]:
    """Return the service of each lane, by its weight."""
    return [lane.service for lane in scheduler._lanes.all()]


def check(scheduler: Scheduler, capacity: Capacity, flights: Iterable[BatchPlan]) -> None:
    """Raises AssertionError when the state between two verbs breaks an invariant."""
    _check_blocks(scheduler)
    _check_sharing(scheduler, capacity.block_size)
    _check_windows(scheduler, capacity)
    _check_cache(scheduler)
    _check_lookups(scheduler)
    _check_host(scheduler)
    _check_states(scheduler)
    _check_rows(scheduler, capacity)
    _check_lanes(scheduler)
    _check_counters(scheduler, capacity, flights)
    _check_queues(scheduler)
    _check_backlogs(scheduler)


def _check_blocks(scheduler: Scheduler) -> None:
    """Invariant 2, and the second half of 3."""
    pool = scheduler._memory._pool
    listed, idle = [*pool._free, *range(pool._next_unused, pool.num_blocks)], set(pool._evictable)
    free = set(listed)
    assert len(free) == len(listed) == pool.free, "a block is free twice"
    assert not free & idle, "a block is free and idle"
    tables = [held(scheduler, sequence) for sequence in alive(scheduler)]
    assert all(len(set(table)) == len(table) for table in tables), "a table holds a block twice"
    moving = [scheduler._memory._transfers.blocks_in_flight()]
    states = scheduler._memory._capacity.state_group
    exported = [block for group, block in _exported(scheduler) if group != states]
    holders = Counter(block for held in (*tables, *moving, exported) for block in held)
    for block in range(pool.num_blocks):
        assert pool.ref_count(block) == holders[block], (
            f"block {block}: count {pool.ref_count(block)}, {holders[block]}"
        )
        assert (holders[block] == 0) == (block in free or block in idle), f"block {block} is held and not held"
    snapshot = scheduler.stats()
    assert (snapshot.kv.free_blocks, snapshot.kv.evictable_blocks) == (len(free), len(idle))
    assert snapshot.kv.held_blocks + snapshot.kv.free_blocks + snapshot.kv.evictable_blocks == pool.num_blocks


def _exported(scheduler: Scheduler) -> list[tuple[int, int]]:
    """Return (group, block) of what the next plan exports, once for each reference. The engine has no use for it."""
    return [unit for ready in scheduler._memory._exporter._ready for unit in ready.units()]


def _check_sharing(scheduler: Scheduler, size: int) -> None:
    """Invariant 3: a block in two tables is full, and holds the same prefix for both."""
    contents: dict[int, tuple[int, tuple[int, ...], object]] = {}
    for sequence in alive(scheduler):
        tables = [(group, *entry) for group, table in enumerate(sequence.block_tables) for entry in enumerate(table)]
        for group, index, block in tables:
            if index < sequence.num_freed_blocks[group] or scheduler._memory._pool.ref_count(block) < 2:
                continue
            end = (index + 1) * size
            assert end <= min(sequence.num_computed, sequence.num_tokens), f"block {block} is shared, but not full"
            content = (index, sequence.token_slice(0, end), (group, scheduler._memory._sharing.root(sequence)))
            assert contents.setdefault(block, content) == content, f"block {block} is shared by different prefixes"


def _check_windows(scheduler: Scheduler, capacity: Capacity) -> None:
    """Tables have all blocks that the next query sees, without gaps, and no others."""
    for sequence in running(scheduler):
        computed = sequence.num_computed - sequence.num_drafts
        for group, (window, table) in enumerate(zip(capacity.windows, sequence.block_tables, strict=True)):
            passed = sequence.num_freed_blocks[group]
            assert passed * capacity.block_size <= first_seen(computed, window)
            assert table[:passed] == [capacity.num_blocks] * passed and capacity.num_blocks not in table[passed:]


def _check_cache(scheduler: Scheduler) -> None:
    prefix, pool = scheduler._memory._prefix, scheduler._memory._pool
    blocks = prefix._by_key.values()
    assert all(one.key == key and prefix._by_node[one.node] is one for key, one in prefix._by_key.items())
    assert len(prefix._by_node) == len(prefix._by_key)
    assert all((one.block is None) != (one.host_block is None) for one in blocks), "content is nowhere, or twice"
    assert {one.block: one for one in blocks if one.block is not None} == prefix._by_block
    if not scheduler._config.distinct_prompts:
        assert all(prefix.has_block(block) for block in pool._evictable), "an evictable block has no content"
    assert not any(prefix.has_block(block) for block in pool._free), "a free block has content"


def _check_lookups(scheduler: Scheduler) -> None:
    """Lookups are of waiting sequences only, and their answer "no room" is right."""
    memory = scheduler._memory
    sharing, pool = memory._sharing, memory._pool
    by_number = {one.number: one for one in alive(scheduler) if one.row is None and one.finish is None}
    assert set(sharing._lookups) <= set(by_number)
    for number, lookup in list(sharing._lookups.items()):
        old = replace(lookup)
        fresh = Lookup()
        one = by_number[number]
        root, limit = sharing.root(one), one.max_cached_tokens // memory.block_size
        memory._prefix.match(fresh.chain, root, one.token_slice, limit)
        kept = CachedChain(list(lookup.chain.blocks), lookup.chain.losses)
        memory._prefix.match(kept, root, one.token_slice, limit)
        assert kept.blocks == fresh.chain.blocks
        sharing.has_room(one, fresh, 0)
        if fresh.length == old.length:
            assert fresh.room <= old.room + pool.num_released - old.num_released


def _check_host(scheduler: Scheduler) -> None:
    """Invariant 2 for the host: a block is free, has content, or is of a transfer in flight; content without waiters
    is evictable."""
    host, transfers = scheduler._memory._host, scheduler._memory._transfers
    cached = scheduler._memory._prefix._by_node.values()
    used = [one.host_block for one in cached if one.host_block is not None]
    assert not transfers._planned, "transfers that are in no plan"
    assert set(transfers.in_flight) == set(transfers._on_end)
    stores = [one for one in transfers.in_flight.values() if one.tier == HOST and one.kind == "store"]
    assert host.num_stores == len(stores) - host._is_storing_ahead
    moving = list(transfers.host_blocks_in_flight())
    assert sorted([*host._free, *used, *moving]) == list(range(host.num_blocks)), "a host block is lost or used twice"
    waiting = {one.number for one in alive(scheduler) if one.row is None and one.finish is None}
    assert set(host._waiting) <= waiting, "content is kept for a sequence that does not wait"
    waiters: dict[int, list[int]] = {}
    for number, blocks in host._waiting.items():
        for one in blocks:
            waiters.setdefault(one.node, []).append(number)
    assert all(sorted(one.waiters) == sorted(waiters.get(one.node, [])) for one in cached)
    evictable = {one.host_block: one for one in cached if one.host_block is not None and not one.waiters}
    assert host._evictable == evictable
    assert sorted(host._order) == sorted(evictable) and len(host._order) == len(host._evictable)
    snapshot = scheduler.stats()
    assert snapshot.kv.used_host_blocks == len(used) + len(moving)
    assert snapshot.kv.swapped_sequences == len(host._waiting)


def _check_states(scheduler: Scheduler) -> None:
    """A slot for recurrent state is free, cached at a node that exists, held by a row that will begin from it, or taken
    by a sequence whose tokens are not all known."""
    memory = scheduler._memory
    slots, states = memory._states.slots, [one.state for one in alive(scheduler) if one.state is not None]
    assert len(states) == len(running(scheduler)) * memory.has_state
    assert not slots._planned and not memory._states._beginning, "a plan is not complete"
    holders = Counter(state.begins_from for state in states if state.begins_from >= 0)
    transfers = memory._transfers.in_flight.values()
    holders.update(slot for one in transfers for group, slot in one.units() if group == memory._capacity.state_group)
    holders.update(state.exported for state in states if state.exported >= 0)
    holders.update(slot for group, slot in _exported(scheduler) if group == memory._capacity.state_group)
    assert slots._holders == [holders[slot] for slot in range(slots.count)]
    unpublished = [slot for state in states for _, slot in state.unpublished]
    alone = [slot for slot in holders if slot not in slots._nodes]
    assert sorted([*slots._free, *slots._nodes, *unpublished, *alone]) == list(range(slots.count)), "a slot is lost"
    assert slots._by_node == {node: slot for slot, node in slots._nodes.items()}
    assert all(node in memory._prefix._by_node for node in slots._by_node), "a checkpoint has no node"
    assert sorted(slot for cached in slots._cached for slot in cached) == sorted(slots._nodes)
    assert all(slots._kinds[slot] == kind for kind, cached in enumerate(slots._cached) for slot in cached)
    assert len(slots._cached[2]) <= max(1, slots.count // 2), "shared checkpoints have too many slots"
    assert all(state.newest <= one.num_computed for one in running(scheduler) if (state := one.state) is not None)
    assert scheduler.stats().kv.used_checkpoints == slots.count - len(slots._free)


def _check_lanes(scheduler: Scheduler) -> None:
    """Rows that a lane keeps are free or in use, and none has more than it may."""
    held = scheduler._running
    for lane in scheduler._lanes.all():
        assert lane.running == sum(scheduler._lanes.of(one) is lane for one in held.sequences)
    if batches_together(scheduler):
        return
    kept = sum(max(0, lane.settings.min_rows - lane.running) for lane in scheduler._lanes.all())
    assert held.num_free_rows >= kept, "rows that a lane keeps were given away"
    for lane in scheduler._lanes.all():
        assert lane.settings.max_rows is None or lane.running <= lane.settings.max_rows
        assert abs(lane.deficit.tokens) <= MAX_DEFICIT


def _check_rows(scheduler: Scheduler, capacity: Capacity) -> None:
    rows = [sequence.row for sequence in running(scheduler)]
    free = scheduler._running._free_rows
    assert None not in rows
    assert sorted([*rows, *free]) == list(range(capacity.max_rows)), "a row is lost or taken twice"


def _check_counters(scheduler: Scheduler, capacity: Capacity, flights: Iterable[BatchPlan]) -> None:
    """Invariant 5."""
    in_flight = Counter(chunk.sequence_id for plan in flights for chunk in plan.chunks)
    pending, drafted = Counter[int](), Counter[int]()
    for chunk in (chunk for plan in flights for chunk in plan.chunks):
        drafted[chunk.sequence_id] += chunk.num_drafts
        pending[chunk.sequence_id] += chunk.num_drafts or chunk.sample
    for sequence in alive(scheduler):
        assert sequence.in_flight == in_flight[sequence.number]
        assert 0 <= sequence.num_computed <= sequence.num_tokens + sequence.num_pending
        assert all(sequence.num_computed <= len(table) * capacity.block_size for table in sequence.block_tables)
        assert len(sequence.output) <= sequence.max_output_tokens
        last = len(sequence.prompt) - 1
        assert sequence.scored <= last
        if sequence.recomputes:
            # Each plan in flight takes its scores back as it comes in, and the last one all that was computed with it.
            assert sequence.in_flight, "it waits for nothing, and is not computed again"
        else:
            assert min(sequence.num_computed, last) <= sequence.scored, "a computed position was not scored"
        if sequence.finish is None:
            assert sequence.num_pending == pending[sequence.number]
            assert sequence.num_drafts == drafted[sequence.number]
            assert not sequence.num_drafts or (sequence.in_flight == 1 and not sequence.num_uncomputed)
            assert len(sequence.output) + sequence.num_pending + bool(sequence.num_drafts) <= sequence.max_output_tokens
            assert sequence.num_tokens + sequence.num_pending <= capacity.max_model_len
            assert scheduler._memory._layout.max_blocks(sequence.num_tokens) <= capacity.num_blocks
        elif sequence.row is not None:
            assert sequence.in_flight or batches_together(scheduler), "an ended sequence keeps its row for nothing"
    if batches_together(scheduler):
        assert any(one.finish is None or one.in_flight for one in running(scheduler)), "the batch is over"
    assert set(scheduler._outputs.planned) == set(in_flight), "the scheduler and the flights disagree"


def _check_queues(scheduler: Scheduler) -> None:
    """A sequence that has not ended is waiting, deferred or running, and only running ones hold memory."""
    inside, back = waiting(scheduler), held_back(scheduler)
    with_row = {sequence.number for sequence in running(scheduler)}
    for sequence in alive(scheduler):
        states = (sequence.number in inside) + (sequence.number in back) + (sequence.number in with_row)
        if sequence.finish is None:
            assert states == 1, f"sequence {sequence.number} is in {states} queues and rows"
        else:
            assert states == (sequence.row is not None)
        if sequence.number not in with_row:
            assert (sequence.row, sequence.blocks, sequence.num_computed) == (None, [], 0)
    snapshot = scheduler.stats()
    assert snapshot.waiting == len(inside) + len(back)
    assert snapshot.running == len(with_row)
    assert sum(lane.waiting for lane in snapshot.lanes) == snapshot.waiting
    assert sum(lane.running for lane in snapshot.lanes) == snapshot.running
    for queue in _queues(scheduler):
        assert sorted(entry[1] for entry in queue._order.entries()) == sorted(queue._order._inside), (
            "a waiting sequence is not in a heap"
        )


def _check_backlogs(scheduler: Scheduler) -> None:
    """Counts of a queue are those of a walk through it."""
    for queue in _queues(scheduler):
        waiting = Counter(one.request.tenant for one in queue.everyone())
        assert set(queue.backlog.tenants) == set(waiting)
        assert {tenant: queue.backlog.of(tenant).sequences for tenant in waiting} == waiting
        assert queue.backlog.total.sequences == waiting.total() == len(queue)
        assert queue.backlog.total.tokens == sum(queue.backlog.of(tenant).tokens for tenant in waiting)
        prompts = sum(len(one.prompt) for *_, one in queue._order.entries() if not one.sample_index)
        assert queue.backlog.total.tokens >= prompts, "a prompt that waits is not counted"


def noted_changes(acting: ActingSessions) -> Collection[Session]:
    """Return the sessions whose changes the sums over acting sessions have still to subtract."""
    return acting._changed
