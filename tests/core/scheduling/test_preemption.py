"""Who gives way to a newcomer: as few as it takes, found without asking for each number of them."""

from __future__ import annotations

import pytest

from inflight.core.kv.manager import KVCacheManager

from ..builders import request
from ..harness import Harness, Setup

ROWS = 60
CROWD = Setup(num_blocks=ROWS, max_rows=ROWS + 1, token_budget=4 * ROWS, max_model_len=200, prefix_caching=False)


@pytest.mark.parametrize("blocks", [1, 7, 30, 50])
def test_no_more_give_way_than_it_takes_and_few_numbers_are_tried(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(CROWD)
    for number in range(ROWS):
        harness.add(request(f"b{number}", [0], output=2, lane="batch"))
    harness.step()
    assert harness.scheduler.stats().free_blocks == 0
    asked = []
    can_admit = KVCacheManager.can_admit
    monkeypatch.setattr(KVCacheManager, "can_admit", lambda *given: asked.append(given) or can_admit(*given))
    harness.add(request("foreground", [1] * (2 * blocks), output=1))
    harness.plan()
    assert harness.scheduler.stats().preemptions == blocks
    assert len(asked) < 20
