"""The block pool: states, reference counts, and the order in which blocks are given away."""

from __future__ import annotations

import pytest

from inflight.core.kv.block_pool import BlockPool


def counts(pool: BlockPool) -> tuple[int, int, int]:
    return pool.free, pool.held, pool.evictable


def test_new_blocks_come_lowest_first_and_are_held_once() -> None:
    pool = BlockPool(4, on_evict=lambda block: None)
    assert pool.allocate(2) == (0, 1)
    assert counts(pool) == (2, 2, 0)
    assert [pool.ref_count(block) for block in range(4)] == [1, 1, 0, 0]


def test_released_blocks_are_idle_with_content_and_free_without() -> None:
    pool = BlockPool(4, on_evict=lambda block: None)
    pool.allocate(4)
    pool.release([1, 2, 3], keeps_content={1, 3}.__contains__)
    assert counts(pool) == (1, 1, 2)
    assert pool.is_evictable(1) and not pool.is_evictable(2)
    assert pool.available == 3


def test_free_blocks_are_taken_before_idle_ones_and_those_least_recently_released_first() -> None:
    evicted: list[int] = []
    pool = BlockPool(4, on_evict=evicted.append)
    pool.allocate(4)
    pool.release([2, 0, 3], keeps_content=lambda block: True)
    pool.release([1], keeps_content=lambda block: False)
    assert pool.allocate(1) == (1,)
    assert evicted == []
    assert pool.allocate(2) == (2, 0)
    assert evicted == [2, 0]
    assert counts(pool) == (0, 3, 1)


def test_a_shared_block_stays_until_its_last_holder_leaves() -> None:
    pool = BlockPool(2, on_evict=lambda block: None)
    (block,) = pool.allocate(1)
    pool.acquire(block)
    pool.release([block], keeps_content=lambda block: False)
    assert (pool.ref_count(block), pool.held) == (1, 1)
    pool.release([block], keeps_content=lambda block: False)
    assert counts(pool) == (2, 0, 0)


def test_sharing_wakes_an_idle_block() -> None:
    pool = BlockPool(2, on_evict=lambda block: pytest.fail("its content was found, not evicted"))
    (block,) = pool.allocate(1)
    pool.release([block], keeps_content=lambda block: True)
    pool.acquire(block)
    assert counts(pool) == (1, 1, 0)
    assert pool.allocate(1) != (block,)


def test_forgetting_frees_every_idle_block_and_tells_nobody_what_was_in_it() -> None:
    evicted: list[int] = []
    pool = BlockPool(3, on_evict=evicted.append)
    pool.allocate(3)
    pool.release([0, 1], keeps_content=lambda block: True)
    pool.evict_all()
    assert counts(pool) == (2, 1, 0)
    assert evicted == []


def test_mistakes_are_loud() -> None:
    pool = BlockPool(2, on_evict=lambda block: None)
    with pytest.raises(RuntimeError, match="3 blocks were asked for, but 2 are available"):
        pool.allocate(3)
    pool.allocate(1)
    pool.release([0], keeps_content=lambda block: False)
    with pytest.raises(RuntimeError, match="released more often"):
        pool.release([0], keeps_content=lambda block: False)
