"""The block pool: states, reference counts, and the order of eviction."""

from __future__ import annotations

from collections.abc import Collection

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from inflight.core.kv.block_pool import BlockPool, EvictionOrder


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


def test_retired_blocks_have_their_place_in_the_order_of_eviction_without_content() -> None:
    pool, evicted = pool_of(3, {0, 2})
    pool.allocate(3)
    pool.release([2])
    pool.retire([1])
    pool.release([0])
    assert (counts(pool), pool.evictable_blocks(), pool.num_released) == ((0, 0, 3), (2, 1, 0), 3)
    assert pool.allocate(3) == (2, 1, 0) and evicted == [2, 0]
    with pytest.raises(RuntimeError, match="block 1 was released more often than it was held"):
        pool.retire([1, 1])


@given(st.data(), st.sets(st.integers(0, 5)), st.booleans())
@settings(deadline=None)
def test_every_block_is_in_one_state_whatever_is_asked(data: st.DataObject, cached: set[int], has_owners: bool) -> None:
    """A model beside the pool: references by block, and the evictable blocks in order."""
    gone: list[int] = []
    pool = BlockPool(6, gone.append, cached, EvictionOrder() if has_owners else None)
    held, idle = list[int](), list[int]()
    for _ in range(data.draw(st.integers(1, 30))):
        action = data.draw(st.sampled_from(["allocate", "release", "retire"]))
        count = data.draw(st.integers(0, 7))
        available = pool.available
        gone.clear()
        if action != "allocate":
            left, held = held[:count], held[count:]
            if action == "retire":
                pool.retire(left)
            else:
                for block in left:
                    pool.release([block], owner="a")
            idle += [one for one in left if action == "retire" or one in cached]
        elif count > available:
            with pytest.raises(RuntimeError, match="available"):
                pool.allocate(count)
            assert not gone
        else:
            evicted = max(0, count - pool.free)
            taken = pool.allocate(count)
            assert len(set(taken)) == count and not set(taken) & set(held)
            assert gone == [one for one in idle[:evicted] if one in cached]
            held, idle = [*held, *taken], idle[evicted:]
        assert pool.held == len(held) and pool.free + pool.evictable == pool.available == 6 - pool.held
        assert pool.evictable_blocks() == tuple(idle)
        assert pool.ref_counts() == tuple(int(block in held) for block in range(6))


def test_misuse_raises() -> None:
    pool, _ = pool_of(2)
    with pytest.raises(RuntimeError, match="3 blocks were asked for, but 2 are available"):
        pool.allocate(3)
    pool.allocate(1)
    pool.release([0])
    with pytest.raises(RuntimeError, match="released more often"):
        pool.release([0])
