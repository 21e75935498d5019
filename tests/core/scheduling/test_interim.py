"""Interim steps: short prompts within the suspended step of a long one."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from msgspec import structs

from inflight.config.plugin_guards import guard_policy
from inflight.core.policies import Policy
from inflight.core.sequence import SequenceView
from inflight.core.types.plan import BatchPlan
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.testing import NullExecutor

from ..harness import INTERACTIVE, Harness, Setup

LONG = Setup(
    num_blocks=100, block_size=2, max_rows=4, token_budget=8, max_model_len=120, lanes=(INTERACTIVE,),
    prefill_suspension=1.0,
)  # fmt: skip


def request(name: str, prompt: int, output: int = 2, first: int = 0) -> Request:
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
    tokens = (first, *[(one * 7 + first) % 5 for one in range(1, prompt)])
    return Request(request_id=name, prompt_token_ids=tokens, params=params)


def test_a_short_prompt_has_its_first_token_before_a_long_prompts_step_ends() -> None:
    harness = Harness(LONG, request("long", 60))
    plan = harness.plan()
    assert isinstance(plan, BatchPlan) and plan.may_suspend and harness.is_suspended
    assert not harness.scheduler.interim.due
    harness.add(request("short", 4, first=1))
    assert harness.scheduler.interim.due
    interim = harness.interim()
    assert interim is not None and [chunk.length for chunk in interim.chunks] == [4]
    (tokens,) = harness.commit()
    assert tokens.request_id == "short"
    assert harness.flights[0][0] is plan and not harness.scheduler.interim.due
    assert harness.commit() == []
    harness.drain()


def test_without_a_share_no_step_is_suspended() -> None:
    harness = Harness(replace(LONG, prefill_suspension=0.0), request("long", 60))
    plan = harness.plan()
    harness.add(request("short", 4, first=1))
    assert isinstance(plan, BatchPlan) and not plan.may_suspend and not harness.scheduler.interim.due


def test_a_prompt_of_more_than_half_of_the_long_one_waits() -> None:
    harness = Harness(LONG, request("long", 60))
    harness.plan()
    harness.add(request("other", 31, first=1))
    assert not harness.scheduler.interim.due
    harness.add(request("half", 30, first=2))
    assert harness.scheduler.interim.due


def test_a_flood_of_short_prompts_delays_a_long_one_by_the_share_at_most() -> None:
    """Tokens of others until the long prompt is computed: no more than the share of its own."""
    for share in (0.5, 1.0, 2.0):
        harness = Harness(replace(LONG, prefill_suspension=share), request("long", 60, output=1))
        others, count = 0, 0
        while not any(client.request.request_id == "long" and client.ended for client in harness.clients):
            for _ in range(6):
                harness.add(request(f"short {count}", 3, output=1, first=1 + count % 4))
                count += 1
            before = len(harness.plans)
            harness.step()
            others += sum(plan.tokens for plan in harness.plans[before:] if plan.within is not None)
        assert 0 < others <= share * 60
        for client in list(harness.alive):
            harness.abort(client)


def test_what_a_suspended_step_writes_is_not_found_before_its_end() -> None:
    """The short prompt begins as the long one: it computes that again, instead of reading what is not there yet."""
    long = request("long", 60)
    harness = Harness(LONG, long)
    harness.plan()
    harness.add(replace_prompt(request("twin", 4), long.prompt_token_ids[:6]))
    interim = harness.interim()
    assert interim is not None and interim.chunks[0].start == 0
    harness.commit()
    harness.commit()
    harness.add(replace_prompt(request("later", 4), long.prompt_token_ids[:8]))
    harness.drain()
    assert harness.timings(2).cached_tokens == 6


def replace_prompt(one: Request, prompt: tuple[int, ...]) -> Request:
    return Request(request_id=one.request_id, prompt_token_ids=prompt, params=one.params)


@pytest.mark.parametrize("fault", [True, "memory"])
def test_a_failed_interim_step_and_a_failed_suspended_one_leave_nothing(fault: bool | str) -> None:
    for failing in ("interim", "within"):
        harness = Harness(LONG, request("long", 60))
        harness.plan(fault if failing == "within" else False)
        harness.add(request("short", 4, first=1))
        if failing == "interim":
            harness.interim(fault)
            harness.commit()
        harness.commit()
        harness.drain()


@pytest.mark.parametrize("aborted", ["long", "short"])
def test_requests_may_be_aborted_while_a_step_is_suspended(aborted: str) -> None:
    for when in (0, 1):
        harness = Harness(LONG, request("long", 60))
        harness.plan()
        harness.add(request("short", 4, first=1))
        if when == 0:
            harness.abort(aborted)
        if harness.interim() is not None:
            if when == 1:
                harness.abort(aborted)
            harness.commit()
        harness.commit()
        harness.drain()


def test_under_priorities_a_lower_one_does_not_suspend_a_higher_one() -> None:
    lane = replace(INTERACTIVE, policy="priority")
    for number, due in ((1, False), (-1, True)):
        harness = Harness(replace(LONG, lanes=(lane,)), request("long", 60))
        harness.plan()
        other = request("short", 4, first=1)
        harness.add(Request(request_id="short", prompt_token_ids=other.prompt_token_ids, priority=number))
        assert harness.scheduler.interim.due == due
        harness.drain()


def test_the_loop_suspends_at_the_layer_behind_an_arrival_and_time_adds_up() -> None:
    """A step of 8 s has 8 layers. The short prompt, added at 2 s, has its token at 2 + 4 s."""
    clock = VirtualClock()
    executor = NullExecutor(LONG.capacity, lambda plan: float(plan.tokens))
    loop = EngineLoop(LONG.scheduler(), executor, clock, suspender=executor)
    loop.add(request("long", 60))
    assert loop.advance(until=1.5) == [] and clock.now() == 2.0
    loop.add(request("short", 4, first=1))
    events = loop.advance()
    assert isinstance(events, list) and [event.request_id for event in events] == ["short"] and clock.now() == 6.0
    assert loop.advance() == [] and clock.now() == 12.0
    loop.close()


def test_a_plugin_may_order_by_arrival_alone() -> None:
    class Latest(Policy):
        by_arrival = True

        def rank(self, view: SequenceView, now: float) -> tuple[float]:
            return (-view.arrival,)

    class Plain(Latest):
        by_arrival = False

    assert guard_policy(Latest(), report=pytest.fail).by_arrival
    assert not guard_policy(Plain(), report=pytest.fail).by_arrival


def waiting_behind_a_long_prompt(setup: Setup, *shorts: Request, output: int = 2) -> Harness:
    """Return an engine whose long prompt is suspended, with these behind it. output: of the long one."""
    harness = Harness(setup, request("long", 60, output))
    harness.plan()
    for one in shorts:
        harness.add(one)
    return harness


def test_one_that_the_batch_is_expected_to_lack_blocks_for_waits() -> None:
    """By the watermark alone there is room: 40 blocks of 2 tokens beside the long prompt's, and 25 + 27 are wanted."""
    for allocation, joins in (("paged", True), ("expected-peak", False)):
        setup = replace(LONG, num_blocks=70, allocation=allocation, oracle=True)
        harness = waiting_behind_a_long_prompt(setup, request("short", 4, output=50, first=1), output=50)
        assert (harness.interim() is not None) == joins
        harness.drain()


def test_a_call_that_waits_for_acting_programs_waits_in_an_interim_step_too() -> None:
    for name, joins in (("", True), ("new", False)):
        lane = replace(INTERACTIVE, policy="program")
        setup = replace(LONG, num_blocks=40, lanes=(lane,), session_eviction=True)
        harness = Harness(setup)
        agent = request("agent", 14, output=3, first=2)
        harness.serve(structs.replace(agent, session="agent"))
        harness.add(request("long", 60))
        harness.plan()
        short = request("short", 9, output=2, first=1)
        harness.add(structs.replace(short, program=name, arrival=harness.now))
        plan = harness.interim()
        assert (plan is not None) == joins
        harness.drain()


def test_the_head_of_the_queue_is_left_its_row_and_its_blocks() -> None:
    for blocks, rows, joins in ((200, 4, True), (61, 4, False), (200, 2, False)):
        setup = replace(LONG, num_blocks=blocks, max_rows=rows)
        harness = waiting_behind_a_long_prompt(setup, request("head", 60, first=3), request("short", 4, first=1))
        assert (harness.interim() is not None) == joins
        harness.drain()


def test_one_whose_blocks_are_still_to_be_loaded_waits() -> None:
    """An interim step that can compute nothing at once changes nothing: the harness looks at all queues and blocks."""
    setup = replace(
        LONG, num_blocks=36, host_blocks=30, preemption="swap", transfer_polls=(3,), prefill_suspension=4.0, max_rows=3
    )
    for seed in range(20):
        draw = Random(seed)
        harness = Harness(setup)
        for number in range(12):
            tokens = draw.choice([4, 6, 30, 50])
            harness.add(request(f"r{number}", tokens, output=draw.randint(1, 12), first=draw.randrange(4)))
            harness.step()
        harness.drain()
