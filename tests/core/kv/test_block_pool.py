"""The block pool: states, reference counts, and the order of eviction."""

from __future__ import annotations

from collections.abc import Callable, Container

import pytest

from inflight.core.kv.block_pool import BlockPool


def pool_of(blocks: int, on_evict: Callable[[int], object], cached: Container[int] = ()) -> BlockPool:
    """A pool in which these blocks have content."""
    return BlockPool(blocks, on_evict, cached.__contains__)  # type: ignore[arg-type]


def counts(pool: BlockPool) -> tuple[int, int, int]:
    return pool.free, pool.held, pool.evictable


def test_new_blocks_come_lowest_first_and_are_held_once() -> None:
    pool = pool_of(4, lambda block: None)
    assert pool.allocate(2) == (0, 1)
    assert counts(pool) == (2, 2, 0)
    assert [pool.ref_count(block) for block in range(4)] == [1, 1, 0, 0]


def test_released_blocks_are_evictable_with_content_and_free_without() -> None:
    pool = pool_of(4, lambda block: None, {1, 3})
    pool.allocate(4)
    pool.release([1, 2, 3])
    assert counts(pool) == (1, 1, 2)
    assert pool.is_evictable(1) and not pool.is_evictable(2)
    assert pool.available == 3


def test_free_blocks_are_taken_before_evictable_ones_and_those_least_recently_released_first() -> None:
    evicted: list[int] = []
    pool = pool_of(4, evicted.append, {0, 2, 3})
    pool.allocate(4)
    pool.release([2, 0, 3])
    pool.release([1])
    assert pool.allocate(1) == (1,)
    assert evicted == []
    assert pool.allocate(2) == (2, 0)
    assert evicted == [2, 0]
    assert counts(pool) == (0, 3, 1)


def test_a_shared_block_stays_until_its_last_holder_leaves() -> None:
    pool = pool_of(2, lambda block: None)
    (block,) = pool.allocate(1)
    pool.acquire(block)
    pool.release([block])
    assert (pool.ref_count(block), pool.held) == (1, 1)
    pool.release([block])
    assert counts(pool) == (2, 0, 0)


def test_an_evictable_block_can_be_shared() -> None:
    pool = pool_of(2, lambda block: pytest.fail("its content was found, not evicted"), {0, 1})
    (block,) = pool.allocate(1)
    pool.release([block])
    pool.acquire(block)
    assert counts(pool) == (1, 1, 0)
    assert pool.allocate(1) != (block,)


def test_discarding_frees_every_evictable_block_without_a_call() -> None:
    evicted: list[int] = []
    pool = pool_of(3, evicted.append, {0, 1, 2})
    pool.allocate(3)
    pool.release([0, 1])
    pool.discard_all()
    assert counts(pool) == (2, 1, 0)
    assert evicted == []


def test_misuse_raises() -> None:
    pool = pool_of(2, lambda block: None)
    with pytest.raises(RuntimeError, match="3 blocks were asked for, but 2 are available"):
        pool.allocate(3)
    pool.allocate(1)
    pool.release([0])
    with pytest.raises(RuntimeError, match="released more often"):
        pool.release([0])
