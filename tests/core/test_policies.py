"""Policies: the order of each, its ageing, and which sequence is preempted. `test_fair` has fair share."""

from __future__ import annotations

from typing import Any

import pytest
from breadth import first_of

from inflight.core.estimation.latency import LatencyModel
from inflight.core.policies import Policy
from inflight.core.policies.deadline import Deadline
from inflight.core.policies.prefix import TOKENS_PER_SECOND, Prefix
from inflight.core.policies.priority import SECONDS_PER_LEVEL, Priority
from inflight.core.policies.sjf import OUTPUT_WEIGHT, WORK_PER_SECOND, Sjf
from inflight.core.sequence import SequenceView
from inflight.core.types.features import Features
from inflight.core.types.request import SLO

from .builders import request, view
from .harness import Harness, LaneSetup, Setup


def order(policy: Policy, *views: SequenceView, now: float = 0.0) -> list[int]:
    return [one.number for one in sorted(views, key=lambda one: (policy.rank(one, now), one.number))]


def harness_of(policy: str, *requests: Any, max_rows: int, num_blocks: int = 60, depth: int = 1) -> Harness:
    lanes = (LaneSetup(policy=policy),)
    return Harness(Setup(num_blocks=num_blocks, token_budget=8, lanes=lanes, max_rows=max_rows, depth=depth), *requests)


WAIT_SJF = 100 * OUTPUT_WEIGHT / WORK_PER_SECOND  # that make up for a hundred tokens of output


@pytest.mark.parametrize(
    ("policy", "views", "numbers"),
    [
        (Sjf(), [view(0, predicted=50), view(1, prompt=[0] * 400, predicted=5), view(2, predicted=5)], [2, 0, 1]),
        # A long request is passed over for a bounded time only.
        (Sjf(), [view(0, predicted=101), view(1, predicted=1, arrival=WAIT_SJF - 1)], [1, 0]),
        (Sjf(), [view(0, predicted=101), view(1, predicted=1, arrival=WAIT_SJF + 1)], [0, 1]),
        (Priority(), [view(0, priority=1), view(1, priority=-1), view(2)], [1, 2, 0]),
        (Priority(), [view(0, priority=1), view(1, arrival=SECONDS_PER_LEVEL - 1)], [1, 0]),
        (Priority(), [view(0, priority=1), view(1, arrival=SECONDS_PER_LEVEL + 1)], [0, 1]),
        (Prefix(), [view(0), view(1, cached=64), view(2, cached=32)], [1, 2, 0]),
        (Prefix(), [view(0), view(1, cached=64, arrival=64 / TOKENS_PER_SECOND * 1.1)], [0, 1]),
    ],
)
def test_the_first_is_served_next_but_waiting_makes_up_for_rank(
    policy: Policy, views: list[SequenceView], numbers: list[int]
) -> None:
    assert order(policy, *views) == numbers


def test_sjf_counts_the_work_that_is_left() -> None:
    policy, one = Sjf(), view(0, prompt=[0] * 20, predicted=30)
    before = policy.rank(one, 0.0)
    one._sequence.num_computed, one._sequence.output = 20, [1] * 10
    assert before[0] - policy.rank(one, 0.0)[0] == 20 + 10 * OUTPUT_WEIGHT


def test_a_clearly_higher_priority_preempts_the_lowest_that_runs() -> None:
    running = request("low", priority=2, output=9), request("middle", priority=1, output=9)
    harness = harness_of("priority", *running, max_rows=2)
    harness.step()
    harness.add(request("same", priority=1), request("high", priority=0))
    assert {chunk.sequence_id for chunk in harness.plan().chunks} == {1, 3}
    assert harness.scheduler.stats().preemptions == 1


def test_no_sequence_is_preempted_for_one_that_could_not_start_anyway() -> None:
    running = request("low", [0] * 3, priority=2, output=4), request("high", [1] * 3, priority=0, output=4)
    harness = harness_of("priority", *running, max_rows=2, num_blocks=4)
    harness.step()
    harness.add(request("next", [2] * 7, priority=1))  # needs all blocks, of which high holds two
    assert len(harness.plan().chunks) == 2 and harness.scheduler.stats().preemptions == 0


@pytest.mark.parametrize("depth", first_of([1, 2]))
def test_low_priorities_do_not_starve(depth: int) -> None:
    harness = harness_of("priority", request("low", priority=1, output=2), max_rows=1, depth=depth)
    for number in range(300):
        harness.add(request(f"high {number}", output=4, arrival=harness.now))
        harness.step()
        if harness.clients[0].ended:
            break
    assert harness.clients[0].ended and number > 100, "only after its time"


def test_the_least_slack_first_and_the_hopeless_last() -> None:
    policy = Deadline(LatencyModel())
    views = view(0, slo=SLO(ttft=1.0)), view(1, slo=SLO(ttft=5.0)), view(2)
    assert (order(policy, *views), order(policy, *views, now=2.0)) == ([0, 1, 2], [1, 2, 0])


def test_slack_counts_what_the_prompt_takes() -> None:
    latency = LatencyModel()
    for tokens in range(1, 60):
        latency.observe(Features(tokens, 1, 1, 0, 0.0), tokens / 100)
    views = view(0, prompt=[0] * 400, slo=SLO(ttft=5.0)), view(1, prompt=[0], slo=SLO(ttft=3.0))
    assert order(Deadline(latency), *views) == [0, 1]  # 4 of its 5 seconds are its prompt
    assert order(Deadline(latency), *views, now=2.0) == [1, 0]  # and now it is too late for it


def test_cached_prefixes_are_looked_up_when_a_choice_is_made() -> None:
    harness = harness_of("prefix", request("first", [0] * 8, output=1), max_rows=1)
    harness.step()
    harness.serve(request("cold", [1] * 8, output=1), request("warm", [0] * 8, output=1))
    starts = dict.fromkeys(chunk.sequence_id for plan in harness.plans for chunk in plan.chunks)
    assert list(starts) == [0, 2, 1]
