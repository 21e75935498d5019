"""Masks that are filled beside the steps."""

from __future__ import annotations

import threading

import numpy as np

from inflight.execution.grammars.slow_masks import SlowMasks

SECONDS = 60


def test_where_a_mask_cannot_be_filled_nothing_may_be_drawn() -> None:
    """All its bits are set before it is filled, so that any token could be."""
    masks, lines = SlowMasks(), np.full((2, 3), 0xFFFFFFFF, np.uint32)

    def breaks() -> None:
        raise RuntimeError("the library's")

    ended = threading.Event()
    mask = masks.begin(7, (5,), lines)
    masks.report(mask)
    masks.fill(mask, breaks)
    masks.fill(masks.begin(8, (), lines[:0]), ended.set)
    assert ended.wait(SECONDS)
    masks.close()
    while not mask.done:
        ended.wait(0.01)
    assert not lines.any() and masks.poll() == [mask.transfer_id]
