"""Nobody is preempted for somebody who gets nothing by it (the harness looks after every plan)."""

from __future__ import annotations

import pytest

from ..builders import request
from ..harness import INTERACTIVE, Harness, LaneSetup, Setup


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
        assert harness.scheduler.stats().preemptions == 0
    harness.drain()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_whoever_gave_way_comes_back_behind_the_one_that_it_gave_way_to(lost: int, depth: int) -> None:
    """The background lane keeps all tokens of a step, and so comes first; but the one row was given up for somebody
    who waits until the victim's blocks are stored. lost: no transfer fails, all do, or every second one."""
    batch = LaneSetup("batch", settings=(("background", True), ("min_tokens", 4)))
    lanes, transfers = (INTERACTIVE, batch), {"transfer_polls": (1,), "lost_transfers": lost}
    setup = Setup(num_blocks=4, max_rows=1, depth=depth, lanes=lanes, preemption="swap", host_blocks=4, **transfers)
    harness = Harness(setup)
    harness.add(request("background", [0] * 6, output=3, lane="batch"))
    harness.step()
    harness.add(request("foreground", [1] * 5, output=2))
    harness.drain()
    background, foreground = (client.ended.timings for client in harness.clients)
    assert harness.scheduler.stats().preemptions == 1
    assert foreground.preempted_ms == foreground.recomputed_tokens == 0
    assert (background.recomputed_tokens > 0) == (lost > 0)
