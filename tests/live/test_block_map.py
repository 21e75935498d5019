from __future__ import annotations

from inflight.live.block_map import MOST_CELLS, in_cells, owners_of
from inflight.live.frames import EVICTABLE, FREE, SHARED


def test_each_block_is_free_evictable_shared_or_somebodys() -> None:
    owners, shared = owners_of((0, 1, 2, 1, 0, 0), (4,), [(7, (1, 2)), (8, (2, 3))])
    assert owners == [FREE, 7, SHARED, 8, EVICTABLE, FREE]
    assert dict(shared) == {7: 1, 8: 1}


def test_neighbours_that_are_alike_are_one_run() -> None:
    assert in_cells([FREE, FREE, 3, 3, 3, FREE]) == ([FREE, 2, 3, 3, FREE, 1], 1)
    assert in_cells([]) == ([], 1)


def test_a_large_pool_has_no_more_cells_than_a_screen() -> None:
    owners = [FREE] * (MOST_CELLS * 3)
    owners[4] = 9
    runs, per_cell = in_cells(owners)
    assert per_cell == 3 and sum(runs[1::2]) == MOST_CELLS
    assert runs[:6] == [FREE, 1, 9, 1, FREE, MOST_CELLS - 2], "a cell with anything held is held"
