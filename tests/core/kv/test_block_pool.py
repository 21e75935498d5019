"""The block pool: states, reference counts, and the order of eviction."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from inflight.core.kv.block_pool import BlockPool


def pool_of(blocks: int, cached: Collection[int] = ()) -> tuple[BlockPool, list[int]]:
    """Return a pool in which these blocks have content, and those that it evicted."""
    evicted: list[int] = []
    return BlockPool(blocks, evicted.append, cached), evicted


def counts(pool: BlockPool) -> tuple[int, int, int]:
    return pool.free, pool.held, pool.evictable


def test_free_blocks_are_taken_before_evictable_ones_and_those_least_recently_released_first() -> None:
    pool, evicted = pool_of(4, {0, 2, 3})
    assert pool.allocate(4) == (0, 1, 2, 3)
    pool.release([2, 0, 3])
    pool.release([1])
    assert (counts(pool), pool.available) == ((1, 0, 3), 4)
    assert pool.allocate(1) == (1,) and not evicted
    assert pool.allocate(2) == (2, 0) and evicted == [2, 0]
    assert counts(pool) == (0, 3, 1)


def test_a_block_stays_until_its_last_holder_leaves_and_can_be_shared_again_while_it_has_content() -> None:
    pool, evicted = pool_of(2, {0})
    pool.allocate(1)
    pool.acquire(0)
    pool.release([0])
    assert (pool.ref_count(0), counts(pool)) == (1, (1, 1, 0))
    pool.release([0])
    assert pool.is_evictable(0) and counts(pool) == (1, 0, 1)
    pool.acquire(0)
    assert counts(pool) == (1, 1, 0) and pool.allocate(1) == (1,) and not evicted


def test_discarding_frees_every_evictable_block_without_a_call() -> None:
    pool, evicted = pool_of(3, {0, 1, 2})
    pool.allocate(3)
    pool.release([0, 1])
    pool.discard_all()
    assert counts(pool) == (2, 1, 0) and not evicted


def test_reserved_blocks_are_held_before_they_are_taken() -> None:
    pool, evicted = pool_of(4, {0, 1})
    pool.allocate(3)
    pool.release([1, 0])
    pool.reserve(2)
    assert (counts(pool), pool.available, evicted) == ((0, 3, 1), 1, [1])
    with pytest.raises(RuntimeError, match="2 blocks were asked for, but 1 are available"):
        pool.allocate(2)
    assert pool.allocate(1) == (0,) and sorted(pool.take_reserved(2)) == [1, 3]
    assert counts(pool) == (0, 4, 0)


def test_misuse_raises() -> None:
    pool, _ = pool_of(2)
    with pytest.raises(RuntimeError, match="3 blocks were asked for, but 2 are available"):
        pool.allocate(3)
    pool.allocate(1)
    pool.release([0])
    with pytest.raises(RuntimeError, match="released more often"):
        pool.release([0])
