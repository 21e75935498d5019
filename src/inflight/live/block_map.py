"""Draw the KV pool and the tiers behind it as maps: runs of equal cells, no more cells than fit on a screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from inflight.core.kv.manager import HostDump
from inflight.core.types.kv_transfer import FolderStats
from inflight.live.frames import EVICTABLE, FREE, MOVING, OTHERS, SHARED, TierPart

MAX_CELLS = 4096
MAX_TIER_CELLS = 2048  # of a tier behind the device, which is drawn coarser
_UNUSED = {FREE, EVICTABLE}  # a cell of several blocks shows the most frequent owner, and these only if it has no other


def owners_of(
    ref_counts: Sequence[int],
    evictable: Sequence[int],
    tables: Sequence[tuple[int, Sequence[int]]],
    moving: Sequence[int] = (),
) -> tuple[list[int], Counter[int]]:
    """Return the owner of each block, and the number of shared blocks of each sequence.

    Args:
        ref_counts: References to each block.
        evictable: Cached blocks without references.
        tables: Sequences' numbers and blocks.
        moving: Blocks that transfers hold, once for each transfer. A block that a sequence holds too is the sequence's.
    """
    owners = [FREE] * len(ref_counts)
    for block in evictable:
        owners[block] = EVICTABLE
    transfers = Counter(moving)
    for block in transfers:
        owners[block] = MOVING
    shared: Counter[int] = Counter()
    for number, blocks in tables:
        for block in blocks:
            if ref_counts[block] - transfers[block] > 1:
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
    """Draw a tier. owners: of each of its blocks."""
    counts = Counter(owners)
    wanted = sum(count for owner, count in counts.items() if owner >= 0 or owner == SHARED)
    cells, per_cell = in_cells(owners, MAX_TIER_CELLS)
    return TierPart(len(owners), counts[EVICTABLE], wanted, counts[MOVING], 0, cells, per_cell)


def folder_tier(folder: FolderStats) -> TierPart | None:
    """Draw a folder of block files. Files have no order: the cells show only how many there are.

    Returns:
        None before the size of a block's file is known.
    """
    if not folder.block_bytes:
        return None
    room = max(folder.max_bytes, folder.nbytes) // folder.block_bytes
    mine = min(folder.own_bytes // folder.block_bytes, room)  # a checkpoint takes as much as several blocks
    others = min(room - mine, max(0, folder.nbytes // folder.block_bytes - mine))
    per_cell = max(1, -(-room // MAX_TIER_CELLS))
    cells: list[int] = []
    for owner, blocks in ((EVICTABLE, mine), (OTHERS, others), (FREE, room - mine - others)):
        if blocks:
            cells += (owner, -(-blocks // per_cell))
    return TierPart(room, mine, 0, 0, others, cells, per_cell)


def in_cells(owners: Sequence[int], max_cells: int = MAX_CELLS) -> tuple[list[int], int]:
    """Return the runs of cells as [owner, number of cells, owner, …], and the blocks in a cell."""
    per_cell = max(1, -(-len(owners) // max_cells))
    if per_cell > 1:
        owners = [_prevalent(owners[start : start + per_cell]) for start in range(0, len(owners), per_cell)]
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


def _prevalent(owners: Sequence[int]) -> int:
    held = [one for one in owners if one not in _UNUSED]
    return Counter(held or owners).most_common(1)[0][0]
