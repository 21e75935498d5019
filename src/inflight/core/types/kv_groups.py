"""KV groups: how many blocks a sequence needs where some layers keep only their window.

The layers of a group look equally far back, and a block of any group is of the same size, so that one pool serves all.
Of a group with a window, blocks that no query to come sees are given up while the sequence runs. Knows arithmetic; who
holds what is `core.kv`'s, which layers are in which group the executor's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


def first_seen(position: int, window: int) -> int:
    """The first position that a query at `position` sees."""
    return max(0, position - window + 1) if window else 0


def window_blocks(window: int, chunk: int, block_size: int) -> int:
    """Most blocks of a group that a chunk of `chunk` tokens needs: its own positions, and the window before the first,
    wherever in a block that begins."""
    return -(-(window + chunk - 2) // block_size) + 1


def max_blocks(tokens: int, block_size: int, windows: Sequence[int], chunk: int) -> int:
    """Blocks of all groups that a sequence of `tokens` tokens holds at most, computed in chunks of at most `chunk`."""
    each = -(-tokens // block_size)
    return sum(min(each, window_blocks(window, chunk, block_size)) if window else each for window in windows)


def max_sequence_tokens(num_blocks: int, block_size: int, windows: Sequence[int], chunk: int, limit: int) -> int:
    """Tokens of the longest sequence that so many blocks hold. limit: that it may have at all, which counts where every
    layer has a window."""
    if any(not window for window in windows):
        limit = num_blocks * block_size
    lengths = range(block_size, limit + block_size, block_size)
    whole = bisect_right(lengths, num_blocks, key=lambda tokens: max_blocks(tokens, block_size, windows, chunk))
    return min(limit, whole * block_size)
