"""The KV pool as a map: what each block is, in runs, and in no more cells than a screen has room for.

Knows owners of blocks; not who they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from inflight.live.frames import EVICTABLE, FREE, SHARED

MOST_CELLS = 4096
_NOTABLE = {FREE: 0, EVICTABLE: 1}  # what a cell of several blocks is: anything held before these, else what is most


def owners_of(
    ref_counts: Sequence[int], evictable: Sequence[int], tables: Sequence[tuple[int, Sequence[int]]]
) -> tuple[list[int], Counter[int]]:
    """What each block is, and the shared blocks of each sequence. tables: of the sequences, by their numbers."""
    owners = [FREE] * len(ref_counts)
    for block in evictable:
        owners[block] = EVICTABLE
    shared: Counter[int] = Counter()
    for number, blocks in tables:
        for block in blocks:
            if ref_counts[block] > 1:
                owners[block] = SHARED
                shared[number] += 1
            else:
                owners[block] = number
    return owners, shared


def in_cells(owners: Sequence[int]) -> tuple[list[int], int]:
    """In runs, what a cell is and how many cells of that; and blocks of a cell."""
    per_cell = max(1, -(-len(owners) // MOST_CELLS))
    if per_cell > 1:
        owners = [_most(owners[start : start + per_cell]) for start in range(0, len(owners), per_cell)]
    runs: list[int] = []
    last, count = None, 0
    for one in owners:
        if one == last:
            count += 1
            continue
        if last is not None:
            runs += (last, count)
        last, count = one, 1
    if last is not None:
        runs += (last, count)
    return runs, per_cell


def _most(owners: Sequence[int]) -> int:
    held = [one for one in owners if one not in _NOTABLE]
    return Counter(held or owners).most_common(1)[0][0]
