"""Prefix sharing: how long a prefix is that every KV group can serve."""

from __future__ import annotations

import random

import pytest

from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.block_tables import TableLayout
from inflight.core.kv.prefix_cache import PrefixCache
from inflight.core.kv.prefix_sharing import PrefixSharing
from inflight.core.types.plan import Capacity

SIZE, WINDOWS = 2, (0, 5, 8, 12)
GROUPS = range(1, len(WINDOWS))


def sharing() -> tuple[PrefixSharing, TableLayout]:
    layout = TableLayout(Capacity(8, SIZE, 1, 1000, 10, windows=WINDOWS), "paged", 8)
    cache = PrefixCache(SIZE, lambda node: None)
    pool = BlockPool(8, lambda block: None, cache.blocks)
    return PrefixSharing(layout, pool, cache, None, True), layout


class Source:
    """Blocks of other groups than the first that are elsewhere, and those that were looked up."""

    def __init__(self, present: set[tuple[int, int]]) -> None:
        self.present, self.looked_up = present, list[tuple[int, int]]()

    def has(self, index: int, group: int) -> bool:
        self.looked_up.append((index, group))
        return (index, group) in self.present

    def serves(self, length: int, layout: TableLayout) -> bool:
        """Return whether every window has what it shows behind so many blocks."""
        seen = ((layout.first_block(group, length * SIZE), group) for group in GROUPS)
        return all((index, group) in self.present for first, group in seen for index in range(first, length))


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95, 0.99])
def test_the_longest_prefix_is_found_with_one_look_up_of_each_block(share: float) -> None:
    shared, layout = sharing()
    draws = random.Random(0)
    for count in range(1, 50):
        blocks = [(index, group) for index in range(count) for group in GROUPS]
        source = Source({one for one in blocks if draws.random() < share})
        right = next(length for length in range(count, -1, -1) if source.serves(length, layout))
        assert shared.longest([], count, source.has) == right
        assert len(source.looked_up) == len(set(source.looked_up))


def test_a_group_without_blocks_does_not_make_the_others_be_looked_up_again() -> None:
    shared, _ = sharing()
    source = Source({(index, group) for index in range(500) for group in GROUPS[:-1]})
    assert shared.longest([], 500, source.has) == 0
    assert len(source.looked_up) == len(set(source.looked_up))
