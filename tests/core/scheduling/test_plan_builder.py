"""The plan builder: which sequences get rows, blocks and budget, in which order, and which are preempted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inflight.core.kv.manager import KVCacheManager
from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies import Fixed, StepShape, StepView
from inflight.core.types.plan import BatchPlan, Chunk
from inflight.core.types.request import Request

from .. import inspect_scheduler as inside
from ..builders import request
from ..harness import BATCH, INTERACTIVE, Harness, LaneSetup, Setup

ROOMY = Setup(num_blocks=40, block_size=4, max_rows=4, token_budget=8, max_model_len=64)
TIGHT = Setup(num_blocks=5, block_size=2, max_rows=3, token_budget=12, prefix_caching=False)


def lengths(plan: BatchPlan) -> dict[int, int]:
    return {chunk.sequence_id: chunk.length for chunk in plan.chunks}


def next_lengths(harness: Harness) -> dict[int, int]:
    """Return those of the next step, and run it."""
    plan = harness.plan()
    harness.commit()
    return lengths(plan)


# -- who joins --------------------------------------------------------------------------------------------------


def test_decodes_come_first_and_prompts_get_the_rest_of_the_budget() -> None:
    harness = Harness(ROOMY, request("a", [0] * 3, output=9))
    harness.step()
    harness.add(request("b", [1] * 12), request("c", [2] * 5))
    assert next_lengths(harness) == {0: 1, 1: 7}
    plan = harness.plan()
    assert [(chunk.start, chunk.length, chunk.sample) for chunk in plan.chunks] == [(4, 1, 1), (7, 5, 1), (0, 2, 0)]


def test_a_newcomer_gets_its_whole_table_at_once_and_a_decode_a_block_when_it_crosses_one() -> None:
    harness = Harness(ROOMY, request("a", [0] * 11, output=4))
    harness.drain()
    assert [plan.chunks for plan in harness.plans[:4]] == [
        (Chunk(0, 0, 0, 8, (0, 1, 2), 0),),
        (Chunk(0, 0, 8, 3, (), 1),),
        (Chunk(0, 0, 11, 1, (), 1),),
        (Chunk(0, 0, 12, 1, (3,), 1),),
    ]


def test_a_row_that_is_freed_has_a_newcomer_in_the_same_plan() -> None:
    harness = Harness(replace(ROOMY, max_rows=1), request("a", output=1), request("b", output=1))
    assert [new.row for new in harness.plan().new_requests] == [0] and harness.scheduler.stats().waiting == 1
    harness.commit()
    plan = harness.plan()
    assert (plan.freed_rows, [new.row for new in plan.new_requests]) == ((0,), [0])


def test_a_new_request_has_all_that_the_executor_needs() -> None:
    harness = Harness(ROOMY)
    harness.add(request("a", [5, 6], n=2, seed=7, min_tokens=2, stop_token_ids=[3, 1], ignore_eos=False))
    first, second = harness.plan().new_requests
    assert (first.token_ids, first.prompt_length, first.seed) == ((5, 6), 2, 7)
    assert first.banned_token_ids == (1, 3, 7)  # its own ends, and the model's
    assert (first.sample_index, second.sample_index) == (0, 1)


def test_the_strategys_row_limit_holds_newcomers_back() -> None:
    class Two(Fixed):
        name = "two"

        def shape(self, view: StepView) -> StepShape:
            return StepShape(token_budget=8, row_limit=2)

    scheduler = Scheduler(SchedulerConfig(ROOMY.capacity, Two(), Fcfs()))
    for name in "abc":
        scheduler.add(request(name), 0.0)
    assert len(scheduler.plan(0.0).chunks) == 2


def test_the_watermark_keeps_blocks_for_those_that_run() -> None:
    harness = Harness(Setup(num_blocks=10, block_size=2, max_rows=4, token_budget=20, watermark=0.3))
    harness.add(request("a", [0] * 8), request("b", [1] * 8), request("c", [2] * 2))
    # a takes 4; b would leave 2 where 3 must stay; c would fit, but first come is first served
    assert lengths(harness.plan()) == {0: 8}


def test_the_watermark_cannot_keep_out_one_that_has_the_engine_to_itself() -> None:
    harness = Harness(Setup(num_blocks=4, block_size=2, watermark=1.0), request("a", [0] * 8, output=1))
    assert harness.plan().new_requests


# -- who is preempted -------------------------------------------------------------------------------------------


def test_the_latest_arrival_is_preempted_and_comes_back_before_newcomers() -> None:
    harness = Harness(replace(TIGHT, num_blocks=4))
    harness.add(request("late", [1] * 3, output=5, arrival=-1), request("early", [0] * 3, output=5, arrival=-2))
    harness.step()
    harness.add(request("new", [2], output=1))
    harness.step()  # both fill their second block
    assert next_lengths(harness) == {1: 1}
    assert inside.waiting(harness.scheduler) == {0, 2} and harness.scheduler.stats().preemptions == 1
    harness.drain()
    late, early = harness.timings(0), harness.timings(1)
    assert late.preempted_ms > 0 and late.recomputed_tokens == 4
    assert early.preempted_ms == 0 and early.recomputed_tokens == 0


def test_no_request_joins_in_the_step_of_a_preemption() -> None:
    """Not even one that comes before the victim and would fit: it would only be in the way of the next token."""
    harness = Harness(TIGHT)
    harness.add(request("a", [0] * 2, output=4, arrival=-3), request("b", [1] * 5, output=5, arrival=-1))
    harness.steps(2)
    harness.add(request("new", [2], output=1, arrival=-2))
    harness.until_preempted()
    assert lengths(harness.plans[-1]) == {0: 1}
    assert next_lengths(harness) == {0: 1, 2: 1}


def test_one_that_resumes_finds_its_own_blocks_while_no_other_took_them() -> None:
    harness = Harness(replace(TIGHT, max_rows=2, prefix_caching=True, max_model_len=12))
    harness.add(request("a", [0] * 3, output=4), request("b", [1] * 5, output=3))
    harness.until_preempted()
    harness.drain()
    timings = harness.timings(1)
    assert (timings.recomputed_tokens, timings.cached_tokens) == (2, 0), "a took the last of its three full blocks"


@pytest.mark.parametrize("samples", [1, 2])
def test_a_prompt_that_is_not_computed_whole_is_preempted_like_any_other(samples: int) -> None:
    """Its further samples stay held back, and share two blocks of the prompt afterwards."""
    harness = Harness(replace(TIGHT, max_rows=2, token_budget=3), request("a", [0] * 2, output=7))
    harness.step()
    harness.add(request("b", [1] * 6, output=1, n=samples))
    harness.step()
    assert harness.compute[1].high_water == 2
    harness.until_preempted()
    assert inside.waiting(harness.scheduler) == {1} and len(inside.held_back(harness.scheduler)) == samples - 1
    harness.drain()
    assert harness.compute[1].recomputed > 0
    assert samples == 1 or harness.compute[2].first_start == 4


@pytest.mark.parametrize(("aborted", "reasons"), [("", []), ("a", ["abort", "length"]), ("b", ["length", "abort"])])
def test_at_depth_2_the_victim_sits_out_until_none_of_its_tokens_is_in_flight(aborted: str, reasons: list[str]) -> None:
    """It is preempted then, unless the other sequence is gone, or itself."""
    harness = Harness(replace(TIGHT, num_blocks=4, max_rows=2, depth=2))
    harness.add(request("a", [0] * 3, output=4), request("b", [1] * 3, output=4))
    assert [lengths(harness.plan()) for _ in range(2)] == [{0: 3, 1: 3}, {0: 1, 1: 1}]
    harness.commit()
    assert harness.plan() is None and inside.running(harness.scheduler)[1].preempt_pending
    if aborted:
        harness.abort(aborted)
        harness.drain()
    else:
        harness.commit()
        assert lengths(harness.plan()) == {0: 1}
    assert (harness.scheduler.stats().preemptions, harness.reasons) == (not aborted, reasons)


# -- background work is preempted for newcomers -----------------------------------------------------------------


def test_no_sequence_is_preempted_for_one_that_would_not_fit_anyway() -> None:
    """Two background sequences share a prefix, which they free once, not twice."""
    harness = Harness(replace(ROOMY, num_blocks=12, token_budget=64), request("a", [0] * 9, output=20, lane="batch"))
    harness.step()
    harness.add(request("b", [0] * 9, output=20, lane="batch"), request("c", [1] * 21, output=5))
    harness.step()
    harness.add(request("d", [2] * 25, output=1))
    harness.steps(2)
    snapshot = harness.scheduler.stats()
    assert (snapshot.running, snapshot.waiting, snapshot.preemptions) == (3, 1, 0)


@pytest.mark.parametrize("depth", [1, 2])
def test_background_work_stays_while_prompts_that_run_leave_a_newcomer_no_token(depth: int) -> None:
    """A decode and a prompt take the two tokens of each step; the newcomer gets the third row only behind them."""
    harness = Harness(Setup(num_blocks=30, block_size=4, max_rows=3, token_budget=2, depth=depth))
    for name, prompt, output in (("decode", [0], 20), ("batch", [1] * 4, 4), ("prompt", [0] * 12, 2)):
        harness.add(request(name, prompt, output=output, lane="batch" if name == "batch" else "interactive"))
        harness.step()
    harness.add(request("newcomer", [1] * 6, output=2))
    harness.steps(6)
    assert harness.scheduler.stats().preemptions == 0


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_victim_comes_back_behind_the_one_that_it_was_preempted_for(lost: int, depth: int) -> None:
    """The background lane keeps all tokens of a step, and so comes first; but its row was taken for a request that
    waits until the victim's blocks are stored. lost: no transfer fails, all do, or every second one."""
    batch = LaneSetup("batch", settings=(("background", True), ("min_tokens", 4)))
    setup = Setup(num_blocks=4, max_rows=1, depth=depth, lanes=(INTERACTIVE, batch), preemption="swap", host_blocks=4)
    harness = Harness(replace(setup, transfer_polls=(1,), lost_transfers=lost))
    harness.add(request("background", [0] * 6, output=3, lane="batch"))
    harness.step()
    harness.serve(request("foreground", [1] * 5, output=2))
    assert harness.scheduler.stats().preemptions == 1
    assert harness.timings(1).preempted_ms == harness.timings(1).recomputed_tokens == 0
    assert (harness.timings(0).recomputed_tokens > 0) == (lost > 0)


# -- how much is looked at --------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [1, 7, 30, 50])
def test_no_more_are_preempted_than_it_takes_and_few_numbers_are_tried(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = Harness(Setup(num_blocks=60, max_rows=61, token_budget=240, max_model_len=200, prefix_caching=False))
    harness.add(*(request(f"b{number}", [0], output=2, lane="batch") for number in range(60)))
    harness.step()
    assert harness.scheduler.stats().kv.free_blocks == 0
    asked, can_admit = [], KVCacheManager.can_admit
    monkeypatch.setattr(KVCacheManager, "can_admit", lambda *given: asked.append(given) or can_admit(*given))
    harness.add(request("foreground", [1] * (2 * blocks), output=1))
    harness.plan()
    assert harness.scheduler.stats().preemptions == blocks and len(asked) < 20


class CountingDict(dict):
    lookups = 0

    def get(self, key: object, default: object = None) -> object:
        self.lookups += 1
        return super().get(key, default)


def lookups_of_five_steps(setup: Setup, served: list[Request], running: list[Request], waiting: list[Request]) -> int:
    """Serve some requests and begin others; count the blocks that are looked up in the cache while more wait."""
    scheduler, executor = setup.scheduler(), setup.executor()

    def add(requests: list[Request]) -> None:
        for one in requests:
            scheduler.add(one, 0.0)

    def step() -> None:
        plan = scheduler.plan(0.0)
        scheduler.commit(plan, executor.submit(plan).result(), 0.0)

    add(served)
    while not scheduler.idle:
        step()
    add(running)
    step()
    add(waiting)
    prefix = scheduler._memory._prefix
    prefix._by_key = CountingDict(prefix._by_key)
    for _ in range(5):
        step()
    assert scheduler.stats().waiting == len(waiting)
    return prefix._by_key.lookups


@pytest.mark.parametrize("policy", ["fcfs", "prefix"])
def test_no_waiting_request_is_looked_up_while_there_is_no_row(policy: str) -> None:
    setup = replace(ROOMY, num_blocks=99, max_rows=2, token_budget=64, lanes=(LaneSetup(policy=policy), BATCH))
    running = [request(f"{token}", [token] * 32, output=30) for token in range(2)]
    waiting = [request(f"late {number}", [0] * 40, output=1) for number in range(9)]
    assert lookups_of_five_steps(setup, [], running, waiting) == 0


def test_what_is_cached_of_the_first_in_the_queue_is_looked_up_once() -> None:
    """It lacks blocks; then only the block behind its chain is looked up in each plan."""
    setup = replace(ROOMY, num_blocks=30, token_budget=64, max_model_len=120)
    served, running = [request("first", [0] * 80, output=1)], [request("a", [1] * 12, output=12)]
    assert 20 < lookups_of_five_steps(setup, served, running, [request("b", [0] * 112)]) <= 20 + 5
