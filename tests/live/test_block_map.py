from __future__ import annotations

from dataclasses import replace

from inflight.core.kv.manager import HostDump
from inflight.core.types.kv_transfer import FolderStats
from inflight.live.block_map import MAX_CELLS, MAX_TIER_CELLS, folder_tier, host_tier, in_cells, owners_of
from inflight.live.frames import EVICTABLE, FREE, MOVING, OTHERS, SHARED


def test_each_block_is_free_evictable_shared_or_a_sequences() -> None:
    owners, shared = owners_of((0, 1, 2, 1, 0, 0), (4,), [(7, (1, 2)), (8, (2, 3))])
    assert owners == [FREE, 7, SHARED, 8, EVICTABLE, FREE]
    assert dict(shared) == {7: 1, 8: 1}


def test_neighbours_that_are_alike_are_one_run() -> None:
    assert in_cells([FREE, FREE, 3, 3, 3, FREE]) == ([FREE, 2, 3, 3, FREE, 1], 1)
    assert in_cells([]) == ([], 1)


def test_a_large_pool_has_no_more_cells_than_a_screen() -> None:
    owners = [FREE] * (MAX_CELLS * 3)
    owners[4] = 9
    runs, per_cell = in_cells(owners)
    assert per_cell == 3 and sum(runs[1::2]) == MAX_CELLS
    assert runs[:6] == [FREE, 1, 9, 1, FREE, MAX_CELLS - 2], "a cell with anything held is held"


def test_what_only_a_copy_holds_is_moving() -> None:
    owners, shared = owners_of((1, 2, 3, 0), (), [(7, (1, 2)), (8, (2,))], moving=(0, 1, 2))
    assert owners == [MOVING, 7, SHARED, FREE]
    assert dict(shared) == {7: 1, 8: 1}, "a transfer's hold is no share"


def test_a_host_block_is_free_cached_moving_or_a_sequences() -> None:
    part = host_tier(HostDump(8, free=(0, 1), wanted=((2, (5,)), (3, (5, 6))), moving=(4,)))
    assert part.map == [FREE, 2, 5, 1, SHARED, 1, MOVING, 1, EVICTABLE, 3]
    assert (part.blocks, part.kept, part.wanted, part.moving) == (8, 3, 2, 1)


def test_a_folder_is_cells_for_its_room() -> None:
    stats = FolderStats(600, 1000, 4, 0, 0, 0, 0, 0, block_bytes=100, own_bytes=400)
    part = folder_tier(stats)
    assert part is not None and part.map == [EVICTABLE, 4, OTHERS, 2, FREE, 4]
    assert (part.blocks, part.kept, part.others) == (10, 4, 2)
    assert folder_tier(replace(stats, block_bytes=0)) is None
    large = folder_tier(replace(stats, max_bytes=100 * 3 * MAX_TIER_CELLS))
    assert large is not None and large.per_cell == 3 and sum(large.map[1::2]) <= MAX_TIER_CELLS + 2
