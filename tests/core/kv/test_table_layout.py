"""How long tables are: at admission by the allocation, under windows, and of what comes with a request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inflight.core.kv.table_layout import Allocation, TableLayout
from inflight.core.types.plan import Capacity

from ..builders import sequence

SIZE = 4


def layout_of(blocks: int = 100, allocation: Allocation = "paged", windows: tuple[int, ...] = (0,)) -> TableLayout:
    return TableLayout(Capacity(blocks, SIZE, 8, 40, 50, windows=windows), allocation, longest_chunk=8)


@pytest.mark.parametrize(
    ("allocation", "to_the_end", "blocks"),
    [("paged", False, 2), ("paged", True, 4), ("reserve-request", False, 4), ("reserve-max", False, 10)],
)
def test_a_table_at_admission(allocation: Allocation, to_the_end: bool, blocks: int) -> None:
    """A prompt of 5 tokens, an output of up to 10, a model of 40."""
    one = sequence(prompt=[0] * 5)
    one.max_output_tokens = 10
    assert layout_of(allocation=allocation).size(one, to_the_end) == blocks


def test_no_table_is_longer_than_all_there_is() -> None:
    layout = layout_of(blocks=3, allocation="reserve-max")
    assert layout.max_sequence_tokens == 3 * SIZE
    assert layout.size(sequence(prompt=[0] * 5), to_the_end=False) == 3


def test_under_a_window_a_table_reaches_as_far_as_the_window_and_a_chunk_can() -> None:
    """A window of 6 and chunks of 8: a query at position 20 sees 15 and on, which block 3 holds; wherever in a block
    that begins, 4 blocks hold 5 positions before a chunk and its 8."""
    layout = layout_of(windows=(0, 6))
    assert (layout.first(0, 20), layout.first(1, 20)) == (0, 3)
    assert (layout.end(0, 0, 9), layout.end(1, 3, 9), layout.end(1, 3, 5)) == (9, 7, 5)
    assert layout.max_blocks(40) == 10 + 4


def test_tokens_that_come_with_a_request_count_in_whole_blocks_until_a_preemption() -> None:
    one = sequence(prompt=[0] * 11)
    one.request = replace(one.request, num_external_tokens=10)
    assert layout_of().handed(one) == 2 * SIZE
    one.recompute_until = 1
    assert layout_of().handed(one) == 0


def test_what_does_not_fit_is_counted_in_tokens_too() -> None:
    assert layout_of(3).shortage(12) is None
    assert layout_of(3).shortage(13) == (
        "needs 4 KV blocks of 4 tokens, but there are 3 in all: it has 13 tokens, and there is room for 12"
    )
    layout = layout_of(12, windows=(0, 0, 0))
    assert layout.shortage(17) == (
        "needs 15 KV blocks of 4 tokens (at most 5 for each of 3 groups of layers), but there are 12 in all: it has 17 "
        "tokens, and there is room for 16"
    )
