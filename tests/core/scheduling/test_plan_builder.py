"""The plan builder: which sequences get rows, blocks and budget, in which order, and which are preempted."""

from __future__ import annotations

import pytest

from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies import Fixed, StepShape, StepView
from inflight.core.types.plan import BatchPlan, Chunk

from .. import inspect_scheduler as inside
from ..builders import request
from ..harness import BATCH, Harness, LaneSetup, Setup

ROOMY = Setup(num_blocks=40, block_size=4, max_rows=4, token_budget=8, max_model_len=64)


def planned(harness: Harness) -> BatchPlan:
    plan = harness.plan()
    assert isinstance(plan, BatchPlan)
    return plan


def lengths(plan: BatchPlan) -> dict[int, int]:
    return {chunk.sequence_id: chunk.length for chunk in plan.chunks}


def test_decodes_come_first_and_prompts_get_the_rest_of_the_budget() -> None:
    harness = Harness(ROOMY)
    harness.add(request("a", [0] * 3, output=9))
    harness.step()
    harness.add(request("b", [1] * 12), request("c", [2] * 5))
    assert lengths(planned(harness)) == {0: 1, 1: 7}
    harness.commit()
    plan = planned(harness)
    assert lengths(plan) == {0: 1, 1: 5, 2: 2}
    assert [chunk.sample for chunk in plan.chunks] == [True, True, False]
    assert [chunk.start for chunk in plan.chunks] == [4, 7, 0]


def test_a_newcomer_gets_its_whole_table_at_once_and_a_decode_a_block_when_it_crosses_one() -> None:
    harness = Harness(ROOMY)
    harness.add(request("a", [0] * 11, output=4))
    assert planned(harness).chunks == (Chunk(0, 0, 0, 8, (0, 1, 2), False),)
    harness.commit()
    assert planned(harness).chunks == (Chunk(0, 0, 8, 3, (), True),)
    harness.commit()
    assert planned(harness).chunks == (Chunk(0, 0, 11, 1, (), True),)
    harness.commit()
    assert planned(harness).chunks == (Chunk(0, 0, 12, 1, (3,), True),)


def test_rows_are_handed_on_in_one_plan() -> None:
    harness = Harness(Setup(num_blocks=40, max_rows=1, token_budget=8))
    harness.add(request("a", output=1), request("b", output=1))
    assert [new.row for new in planned(harness).new_requests] == [0]
    assert harness.scheduler.stats().waiting == 1
    harness.commit()
    plan = planned(harness)
    assert (plan.freed_rows, [new.row for new in plan.new_requests]) == ((0,), [0])


def test_a_new_request_has_all_that_the_executor_needs() -> None:
    harness = Harness(ROOMY)
    harness.add(request("a", [5, 6], n=2, seed=7, min_tokens=2, stop_token_ids=[3, 1], ignore_eos=False))
    first, second = planned(harness).new_requests
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
    plan = scheduler.plan(0.0)
    assert isinstance(plan, BatchPlan) and len(plan.chunks) == 2


def test_the_watermark_keeps_blocks_for_those_that_run() -> None:
    setup = Setup(num_blocks=10, block_size=2, max_rows=4, token_budget=20, watermark=0.3)
    harness = Harness(setup)
    harness.add(request("a", [0] * 8), request("b", [1] * 8), request("c", [2] * 2))
    planned(harness)
    # a takes 4; b would leave 2 where 3 must stay; c would fit, but first come is first served
    assert [sequence.number for sequence in inside.running(harness.scheduler)] == [0]
    harness.drain()


def test_the_watermark_cannot_keep_out_one_that_has_the_engine_to_itself() -> None:
    harness = Harness(Setup(num_blocks=4, block_size=2, watermark=1.0))
    harness.add(request("a", [0] * 8, output=1))
    assert planned(harness).new_requests


def test_the_latest_arrival_gives_way_and_comes_back_before_newcomers() -> None:
    harness = Harness(Setup(num_blocks=4, block_size=2, max_rows=3, token_budget=12, prefix_caching=False))
    early = request("early", [0] * 3, output=5, arrival=-2)
    late = request("late", [1] * 3, output=5, arrival=-1)
    harness.add(late, early)
    harness.step()
    harness.add(request("new", [2], output=1))
    harness.step()  # both fill their second block
    plan = planned(harness)
    assert lengths(plan) == {1: 1}
    assert inside.waiting(harness.scheduler) == {0, 2}
    assert harness.scheduler.stats().preemptions == 1
    harness.commit()
    harness.drain()
    ends = [client.ended for client in harness.clients]
    assert all(ends)
    assert ends[0].timings.preempted_ms > 0 and ends[0].timings.recomputed_tokens == 4
    assert ends[1].timings.preempted_ms == 0 and ends[1].timings.recomputed_tokens == 0


def test_nobody_joins_in_the_step_of_a_preemption() -> None:
    """Not even one that comes before the victim and would fit: it would only be in the way of the next token."""
    harness = Harness(Setup(num_blocks=5, block_size=2, max_rows=3, token_budget=12, prefix_caching=False))
    harness.add(request("a", [0] * 2, output=4, arrival=-3), request("b", [1] * 5, output=5, arrival=-1))
    harness.step()
    harness.step()
    harness.add(request("new", [2], output=1, arrival=-2))
    while harness.scheduler.stats().preemptions == 0:
        plan = planned(harness)
        harness.commit()
    assert lengths(plan) == {0: 1}
    assert lengths(planned(harness)) == {0: 1, 2: 1}
    harness.commit()
    harness.drain()


def test_one_that_resumes_finds_its_own_blocks_while_nobody_took_them() -> None:
    harness = Harness(Setup(num_blocks=5, block_size=2, max_rows=2, token_budget=12, max_model_len=12))
    harness.add(request("a", [0] * 3, output=4), request("b", [1] * 5, output=3))
    harness.until_preempted()
    harness.drain()
    timings = harness.clients[1].ended.timings
    assert timings.recomputed_tokens == harness.compute[1].recomputed == 2  # a took the last of its three full blocks
    assert timings.cached_tokens == 0


def test_prompts_give_way_too() -> None:
    """One in the middle of its prompt is preempted like any other, and starts over."""
    harness = Harness(Setup(num_blocks=5, block_size=2, max_rows=2, token_budget=3, prefix_caching=False))
    harness.add(request("a", [0] * 2, output=7))
    harness.step()
    harness.add(request("b", [1] * 6, output=1))
    harness.step()
    assert harness.compute[1].high_water == 2
    harness.until_preempted()
    harness.drain()
    ended = harness.clients[1].ended
    assert ended.finishes[0].reason == "length"
    assert ended.timings.recomputed_tokens == harness.compute[1].recomputed > 0


def test_siblings_stay_held_back_while_their_leader_is_preempted() -> None:
    harness = Harness(Setup(num_blocks=5, block_size=2, max_rows=2, token_budget=3, prefix_caching=False))
    harness.add(request("a", [0] * 2, output=7))
    harness.step()
    harness.add(request("b", [1] * 6, output=1, n=2))
    harness.until_preempted()
    assert (inside.waiting(harness.scheduler), inside.held_back(harness.scheduler)) == ({1}, {2})
    harness.drain()
    assert harness.compute[2].first_start == 4  # it shares two blocks of the prompt


class TestDepthTwo:
    """A sequence whose tokens are still in flight cannot be preempted at once."""

    SETUP = Setup(num_blocks=4, block_size=2, max_rows=2, token_budget=12, prefix_caching=False, depth=2)

    def test_the_victim_sits_out_until_nothing_of_it_is_in_flight(self) -> None:
        harness = Harness(self.SETUP)
        harness.add(request("a", [0] * 3, output=4), request("b", [1] * 3, output=4))
        assert lengths(planned(harness)) == {0: 3, 1: 3}
        assert lengths(planned(harness)) == {0: 1, 1: 1}
        harness.commit()
        assert harness.plan() is None  # a needs a block, b's last token is in flight
        assert inside.running(harness.scheduler)[1].preempt_pending
        harness.commit()
        assert lengths(planned(harness)) == {0: 1}
        assert harness.scheduler.stats().preemptions == 1
        harness.drain()
        assert [client.ended.finishes[0].reason for client in harness.clients] == ["length", "length"]

    def test_nobody_is_preempted_for_one_that_has_ended_meanwhile(self) -> None:
        harness = Harness(self.SETUP)
        harness.add(request("a", [0] * 3, output=2), request("b", [1] * 3, output=4))
        planned(harness), planned(harness)
        harness.commit()
        assert harness.plan() is None
        harness.commit()  # a ends, and its blocks are there
        assert lengths(planned(harness)) == {1: 1}
        assert harness.scheduler.stats().preemptions == 0
        harness.drain()

    def test_nobody_is_preempted_for_one_that_was_aborted(self) -> None:
        harness = Harness(self.SETUP)
        harness.add(request("a", [0] * 3, output=4), request("b", [1] * 3, output=4))
        planned(harness), planned(harness)
        harness.commit()
        assert harness.plan() is None
        harness.abort("a")
        harness.commit()
        harness.drain()
        assert harness.scheduler.stats().preemptions == 0
        assert len(harness.clients[1].tokens[0]) == 4

    def test_a_condemned_one_may_be_aborted(self) -> None:
        harness = Harness(self.SETUP)
        harness.add(request("a", [0] * 3, output=4), request("b", [1] * 3, output=4))
        planned(harness), planned(harness)
        harness.commit()
        assert harness.plan() is None
        harness.abort("b")
        harness.drain()
        assert harness.scheduler.stats().preemptions == 0

    def test_no_step_is_planned_beyond_max_tokens(self) -> None:
        harness = Harness(self.SETUP)
        harness.add(request("a", output=None, max_tokens=2))
        planned(harness), planned(harness)
        harness.commit()
        assert harness.plan() is None
        harness.commit()
        assert len(harness.plans) == 2 and harness.scheduler.idle


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 100])
def test_budgets_of_any_size_do_the_same_work(budget: int) -> None:
    harness = Harness(Setup(num_blocks=30, max_rows=4, token_budget=budget, prefix_caching=False))
    harness.add(*(request(str(number), [number] * (number + 1), output=3) for number in range(5)))
    harness.drain()
    assert sum(plan.tokens for plan in harness.plans) == sum(number + 1 + 2 for number in range(5))


def test_nobody_is_preempted_for_one_that_would_not_fit_anyway() -> None:
    """Two background sequences share a prefix, which they give up once, not twice."""
    harness = Harness(Setup(num_blocks=12, block_size=4, max_rows=4, token_budget=64, max_model_len=64))
    harness.add(request("a", [0] * 9, output=20, lane="batch"))
    harness.step()
    harness.add(request("b", [0] * 9, output=20, lane="batch"), request("c", [1] * 21, output=5))
    harness.step()
    harness.add(request("d", [2] * 25, output=1))
    for _ in range(2):
        harness.step()
    snapshot = harness.scheduler.stats()
    assert (snapshot.running, snapshot.waiting, snapshot.preemptions) == (3, 1, 0)
    harness.drain()


class CountingDict(dict):  # type: ignore[type-arg]
    lookups = 0

    def get(self, key: object, default: object = None) -> object:
        self.lookups += 1
        return super().get(key, default)


def counted(harness: Harness) -> CountingDict:
    """The table of the prefix cache, which counts how often a block is looked up."""
    prefix = harness.scheduler._memory._prefix
    prefix._by_key = CountingDict(prefix._by_key)
    return prefix._by_key


@pytest.mark.parametrize("policy", ["fcfs", "prefix"])
def test_nobody_is_looked_up_while_there_is_no_row(policy: str) -> None:
    lanes = (LaneSetup(policy=policy), BATCH)
    harness = Harness(Setup(num_blocks=99, block_size=4, max_rows=2, token_budget=64, max_model_len=64, lanes=lanes))
    harness.add(request("a", [0] * 32, output=30), request("b", [1] * 32, output=30))
    harness.step()
    harness.add(*(request(str(number), [0] * 40, output=1) for number in range(9)))
    table = counted(harness)
    for _ in range(5):
        harness.scheduler.commit(plan := harness.scheduler.plan(0.0), harness.executor.submit(plan).result(), 0.0)
    assert table.lookups == 0


def test_what_is_cached_of_the_first_in_the_queue_is_looked_up_once() -> None:
    """It lacks blocks; then only the block behind its chain is looked up in each plan."""
    harness = Harness(Setup(num_blocks=30, block_size=4, max_rows=4, token_budget=64, max_model_len=120))
    harness.add(request("first", [0] * 80, output=1))
    harness.drain()
    harness.add(request("a", [1] * 12, output=12))
    harness.step()
    harness.add(request("b", [0] * 112, output=1))
    table = counted(harness)
    for _ in range(5):
        harness.scheduler.commit(plan := harness.scheduler.plan(0.0), harness.executor.submit(plan).result(), 0.0)
    assert 20 < table.lookups <= 20 + 5
    assert harness.scheduler.stats().waiting == 1
