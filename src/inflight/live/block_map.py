"""The KV pool as a map, and the tiers behind it: what each block is, in runs, and in no more cells than a screen has
room for.

Knows owners of blocks; not who they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from inflight.core.kv.manager import HostDump
from inflight.core.types.kv_transfer import FolderStats
from inflight.live.frames import EVICTABLE, FREE, MOVING, OTHERS, SHARED, TierPart

MOST_CELLS = 4096
MOST_TIER_CELLS = 2048  # of one behind the device, which is coarser
_NOTABLE = {FREE, EVICTABLE}  # what a cell of several blocks is: anything held before these, else what is most


def owners_of(
    ref_counts: Sequence[int],
    evictable: Sequence[int],
    tables: Sequence[tuple[int, Sequence[int]]],
    moving: Sequence[int] = (),
) -> tuple[list[int], Counter[int]]:
    """What each block is, and the shared blocks of each sequence. tables: of the sequences, by their numbers. moving:
    those that transfers hold, each as often as there are; what somebody else holds too is theirs."""
    owners = [FREE] * len(ref_counts)
    for block in evictable:
        owners[block] = EVICTABLE
    tickets = Counter(moving)
    for block in tickets:
        owners[block] = MOVING
    shared: Counter[int] = Counter()
    for number, blocks in tables:
        for block in blocks:
            if ref_counts[block] - tickets[block] > 1:
                owners[block] = SHARED
                shared[number] += 1
            else:
                owners[block] = number
    return owners, shared


def host_tier(host: HostDump) -> TierPart:
    owners = [EVICTABLE] * host.num_blocks
    for block in host.free:
        owners[block] = FREE
    for block, numbers in host.wanted:
        owners[block] = numbers[0] if len(numbers) == 1 else SHARED
    for block in host.moving:
        owners[block] = MOVING
    return tier_of(owners)


def tier_of(owners: Sequence[int]) -> TierPart:
    """owners: of each of its blocks."""
    counts = Counter(owners)
    wanted = sum(count for owner, count in counts.items() if owner >= 0 or owner == SHARED)
    cells, per_cell = in_cells(owners, MOST_TIER_CELLS)
    return TierPart(len(owners), counts[EVICTABLE], wanted, counts[MOVING], 0, cells, per_cell)


def folder_tier(folder: FolderStats) -> TierPart | None:
    """Files have no places, and cells stand for so many. None where nobody knows yet how large a block's file is."""
    if not folder.block_bytes:
        return None
    room = max(folder.max_bytes, folder.nbytes) // folder.block_bytes
    mine = min(folder.blocks, room)
    others = min(room - mine, max(0, folder.nbytes // folder.block_bytes - mine))
    per_cell = max(1, -(-room // MOST_TIER_CELLS))
    cells: list[int] = []
    for owner, blocks in ((EVICTABLE, mine), (OTHERS, others), (FREE, room - mine - others)):
        if blocks:
            cells += (owner, -(-blocks // per_cell))
    return TierPart(room, mine, 0, 0, others, cells, per_cell)


def in_cells(owners: Sequence[int], most: int = MOST_CELLS) -> tuple[list[int], int]:
    """In runs, what a cell is and how many cells of that; and blocks of a cell. most: cells."""
    per_cell = max(1, -(-len(owners) // most))
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
