"""Steps of foreground and background work, against what each number of tokens would bring."""

from __future__ import annotations

import pytest

from inflight.core.estimation.latency import LatencyModel
from inflight.core.queueing.step_target import EFFICIENCY, MIN_TARGET, StepTarget
from inflight.core.types.features import Features
from inflight.core.types.plan import Chunk

TOKENS, EACH = 100, 0.001  # of a full step; seconds of a token
STREAM = [Chunk(0, 0, 5, 1, (), 1)]


def learnt(setup: float) -> StepTarget:
    latency = LatencyModel()
    for number in range(200):
        size = 1 + number % 50
        latency.observe(Features(size, 1, 1, 0, 0.0), setup + EACH * size)
    return StepTarget(latency)


@pytest.mark.parametrize("setup", [0.0, 0.001, 0.03, 1.0])
def test_a_step_is_as_long_as_is_worth_its_setup(setup: float) -> None:
    """Among all steps that have the share of a full step's tokens per second, it is the shortest."""
    rates = [size / (setup + EACH * size) for size in range(1, TOKENS + 1)]
    worth = next(size for size, rate in enumerate(rates, 1) if rate >= EFFICIENCY * rates[-1])
    least = (MIN_TARGET * (setup + EACH * TOKENS) - setup) / EACH
    tokens = 1 + learnt(setup).background_tokens(["auto"], STREAM, TOKENS - 1)
    assert abs(tokens - max(worth, least)) <= 2


def test_what_streams_take_in_any_case_is_setup() -> None:
    """Sampling and contexts are due whatever is added, so that a crowd's step may be as long as one with that setup."""
    latency = LatencyModel()
    for number in range(400):
        size, rows, context = 1 + number % 50, 1 + number % 7, 100 * (number % 11)
        seconds = 0.004 + EACH * size + 0.0005 * rows + 1e-6 * context
        latency.observe(Features(size, rows, rows, context, 0.0), seconds)
    streams = [Chunk(number, 0, 500, 1, (), 1) for number in range(20)]
    left = TOKENS - len(streams)
    setup = 0.004 + 0.0005 * len(streams) + 1e-6 * 20 * 501
    full = setup + EACH * TOKENS
    seconds = setup * full / (full - EFFICIENCY * (full - setup))
    added = (seconds - setup - EACH * len(streams)) / (EACH + 0.0005)  # as if each were a stream
    assert StepTarget(latency).background_tokens(["auto"], streams, left) == pytest.approx(added, abs=2)


def test_the_shortest_target_counts() -> None:
    target = learnt(0.03)
    automatic = target.background_tokens(["auto"], STREAM, TOKENS - 1)
    assert target.background_tokens(["auto", "off"], STREAM, TOKENS - 1) == automatic
    assert target.background_tokens(["auto", 0.0361], STREAM, TOKENS - 1) == 5
    assert target.background_tokens(["off"], STREAM, TOKENS - 1) == TOKENS - 1
    assert target.background_tokens(["auto"], [], TOKENS) == TOKENS, "without foreground work"
    assert target.background_tokens(["auto"], [Chunk(0, 0, 0, 8, (), 1)], TOKENS) == 0, "beside a foreground prompt"
    assert StepTarget(LatencyModel()).background_tokens([0.1], STREAM, TOKENS) == TOKENS, "before anything is learnt"


@pytest.mark.parametrize("prompt", range(10, 260, 7))
def test_a_prompt_in_even_parts_takes_one_more_step_at_most(prompt: int) -> None:
    """None more, where it takes two or more steps anyway; and its longest part is no longer."""
    target, left, parts = learnt(0.001), prompt, list[int]()
    while left:
        parts.append(min(left, target.even_part(left, left < prompt, 0, STREAM, TOKENS)))
        left -= parts[-1]
    steps = -(-prompt // TOKENS)
    assert len(parts) <= max(2, steps) and max(parts) <= min(prompt, TOKENS)
    assert abs(parts[-1] - parts[-2]) <= 1 if 60 < prompt <= 2 * TOKENS else len(parts) == steps


def test_a_prompt_is_not_divided_where_a_second_step_costs_much_or_others_wait() -> None:
    assert learnt(0.001).even_part(90, False, 0, STREAM, TOKENS) == 45
    assert learnt(0.03).even_part(90, False, 0, STREAM, TOKENS) == TOKENS
    assert learnt(0.001).even_part(90, False, 120, STREAM, TOKENS) == TOKENS
    assert learnt(0.001).even_part(90, False, 0, [], TOKENS) == TOKENS, "no stream waits for it"
    assert StepTarget(LatencyModel()).even_part(90, False, 0, STREAM, TOKENS) == TOKENS
