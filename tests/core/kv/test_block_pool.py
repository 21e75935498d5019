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


def test_more_than_is_available_is_neither_reserved_nor_evicted_for() -> None:
    pool, evicted = pool_of(3, {0, 1})
    pool.allocate(3)
    pool.release([1, 0])
    pool.reserve(1)
    before = counts(pool)
    with pytest.raises(RuntimeError, match="2 blocks were to be reserved, but 1 are available"):
        pool.reserve(2)
    with pytest.raises(RuntimeError, match="2 reserved blocks were to be taken, but 1 are reserved"):
        pool.take_reserved(2)
    assert (counts(pool), evicted) == (before, [1])
    assert pool.take_reserved(1) == (1,) and counts(pool) == (0, 2, 1)


@given(st.data(), st.sets(st.integers(0, 5)), st.booleans())
@settings(deadline=None)
def test_every_block_is_in_one_state_whatever_is_asked(data: st.DataObject, cached: set[int], has_owners: bool) -> None:
    """A model beside the pool: references by block, and how many are reserved."""
    gone: list[int] = []
    pool = BlockPool(6, gone.append, cached, EvictionOrder() if has_owners else None)
    held, reserved = list[int](), 0
    for _ in range(data.draw(st.integers(1, 30))):
        action, count = (
            data.draw(st.sampled_from(["allocate", "reserve", "take", "release"])),
            data.draw(st.integers(0, 7)),
        )
        available, evictable = pool.available, pool.evictable_blocks()
        gone.clear()
        if action == "release":
            for block in held[:count]:
                pool.release([block], owner="a")
            del held[:count]
        elif count > (reserved if action == "take" else available):
            method = {"allocate": pool.allocate, "reserve": pool.reserve, "take": pool.take_reserved}[action]
            with pytest.raises(RuntimeError, match=r"available|reserved"):
                method(count)
            assert not gone and pool.evictable_blocks() == evictable
        elif action == "reserve":
            pool.reserve(count)
            reserved += count
        else:
            taken = pool.take_reserved(count) if action == "take" else pool.allocate(count)
            reserved -= count if action == "take" else 0
            assert len(set(taken)) == count and not set(taken) & set(held)
            held += taken
        assert pool.held == len(held) + reserved and pool.free + pool.evictable == pool.available == 6 - pool.held
        assert set(gone) <= set(evictable) and not set(gone) & set(pool.evictable_blocks())
        assert pool.ref_counts() == tuple(int(block in held) for block in range(6))


def test_misuse_raises() -> None:
    pool, _ = pool_of(2)
    with pytest.raises(RuntimeError, match="3 blocks were asked for, but 2 are available"):
        pool.allocate(3)
    pool.allocate(1)
    pool.release([0])
    with pytest.raises(RuntimeError, match="released more often"):
        pool.release([0])
