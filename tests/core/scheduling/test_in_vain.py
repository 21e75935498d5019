"""Nobody is preempted for somebody who gets nothing by it (the harness looks after every plan)."""

from __future__ import annotations

import pytest

from ..builders import request
from ..harness import Harness, Setup


@pytest.mark.parametrize("depth", [1, 2])
def test_background_work_stays_while_prompts_that_run_leave_a_newcomer_no_token(depth: int) -> None:
    """A decode and a prompt take the two tokens of each step; who comes next gets the third row only behind them."""
    harness = Harness(Setup(num_blocks=30, block_size=4, max_rows=3, token_budget=2, depth=depth))
    harness.add(request("decode", [0], output=20))
    harness.step()
    harness.add(request("batch", [1] * 4, output=4, lane="batch"))
    harness.step()
    harness.add(request("prompt", [0] * 12, output=2))
    harness.step()
    harness.add(request("newcomer", [1] * 6, output=2))
    for _ in range(6):
        harness.step()
        assert harness.scheduler.snapshot().preemptions == 0
    harness.drain()
