"""Prompt scoring and requests that sample nothing: what plans ask for, their events, and what they cost others."""

from __future__ import annotations

import pytest

from inflight.core.estimation.output_length import Quantiles
from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import Event, Finish, FinishedEvent, PromptScoredEvent, TokensEvent
from inflight.core.types.plan import BatchPlan
from inflight.core.types.request import Request
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.testing.null import NullExecutor

from . import inspect_scheduler as inside
from .builders import request
from .harness import Harness, Setup, scores_alone

ROOMY = Setup(num_blocks=40, block_size=4, max_rows=3, token_budget=4)
PROMPT = [0, 1, 1, 0, 1, 0, 0, 0, 1, 1]


def scores_of(plans: list[BatchPlan]) -> list[range]:
    return [chunk.score for plan in plans for chunk in plan.chunks]


def kinds(events: list[Event]) -> list[type]:
    return [type(event) for event in events]


@pytest.mark.parametrize("depth", [1, 2])
def test_every_prompt_position_but_the_last_is_scored_then_tokens_come(depth: int) -> None:
    harness = Harness(Setup(num_blocks=40, block_size=4, token_budget=4, depth=depth))
    harness.add(request("a", PROMPT, output=None, max_tokens=3, prompt_logprobs=2))
    events = harness.drain()
    assert scores_of(harness.plans) == [range(4), range(4, 8), range(8, 9), range(0), range(0)]
    assert [chunk.sample for plan in harness.plans for chunk in plan.chunks] == [False, False, True, True, True]
    assert kinds(events) == [PromptScoredEvent] * 3 + [TokensEvent] * 3 + [FinishedEvent]
    (client,) = harness.clients
    assert [entry.token_id for entry in client.scores] == PROMPT[1:]
    assert client.scores == scores_alone(client.request)
    assert all(len(entry.top) == 2 for entry in client.scores)


def test_without_output_the_prompt_is_computed_and_that_is_all() -> None:
    harness = Harness(ROOMY)
    harness.add(request("a", PROMPT, output=None, max_tokens=0, prompt_logprobs=0))
    events = harness.drain()
    assert kinds(events) == [PromptScoredEvent] * 3 + [FinishedEvent]
    assert [chunk.length for plan in harness.plans for chunk in plan.chunks] == [4, 4, 2]
    assert not any(chunk.sample for plan in harness.plans for chunk in plan.chunks)
    (client,) = harness.clients
    assert (client.tokens, client.ended.finishes) == ([[]], (Finish("length"),))
    timings = client.ended.timings
    assert timings.ttft_ms is None and timings.prefill_ms > 0 and timings.decode_ms == 0


@pytest.mark.parametrize("strategy", ["static", "dynamic", "continuous", "chunked", "adaptive"])
def test_a_prompt_may_fill_the_cache_for_others(strategy: str) -> None:
    harness = Harness(Setup(num_blocks=40, block_size=4, token_budget=8, strategy=strategy))  # type: ignore[arg-type]
    harness.add(request("a", PROMPT, output=None, max_tokens=0))
    harness.drain()
    harness.add(request("b", PROMPT, output=1), request("c", PROMPT, output=None, max_tokens=0))
    harness.drain()
    assert [client.ended.timings.cached_tokens for client in harness.clients] == [0, 8, 8]
    assert [client.ended.finishes[0].reason for client in harness.clients] == ["length"] * 3


def test_one_token_is_a_prompt_without_scores() -> None:
    harness = Harness(ROOMY)
    harness.add(request("a", [1], output=None, max_tokens=0, prompt_logprobs=5))
    assert kinds(harness.drain()) == [FinishedEvent]


def test_scoring_takes_nothing_from_the_cache_but_gives() -> None:
    harness = Harness(ROOMY)
    harness.add(request("a", PROMPT, output=1))
    harness.drain()
    harness.add(request("b", PROMPT, output=1, prompt_logprobs=0, cache_salt="mine"))
    harness.add(request("c", PROMPT, output=1, prompt_logprobs=0))
    harness.drain()
    harness.add(request("d", PROMPT, output=1, cache_salt="mine"))
    harness.drain()
    assert [client.ended.timings.cached_tokens for client in harness.clients] == [0, 0, 0, 8]


def test_of_several_samples_the_first_scores() -> None:
    harness = Harness(ROOMY)
    harness.add(request("a", PROMPT, output=None, max_tokens=0, prompt_logprobs=0, n=3))
    events = harness.drain()
    assert sum(len(event.logprobs) for event in events if isinstance(event, PromptScoredEvent)) == len(PROMPT) - 1
    assert {number: compute.first_start for number, compute in harness.compute.items()} == {0: 0, 1: 8, 2: 8}
    assert harness.clients[0].ended.finishes == (Finish("length"),) * 3


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
def test_after_a_preemption_nothing_is_scored_again(caching: bool, depth: int) -> None:
    """It is preempted inside its prompt, and continues scoring where it stopped, though it computes some twice."""
    setup = Setup(num_blocks=6, block_size=2, max_rows=2, token_budget=3, prefix_caching=caching, depth=depth)
    harness = Harness(setup)
    harness.add(request("a", [0] * 2, output=9))
    harness.step()
    harness.add(request("b", PROMPT[:8], output=1, prompt_logprobs=1))
    harness.until_preempted()
    assert 0 < harness.compute[1].scored < 7
    before = list(harness.clients[1].scores)
    harness.drain()
    client = harness.clients[1]
    assert client.scores == scores_alone(client.request) and client.scores[: len(before)] == before
    assert client.ended.timings.recomputed_tokens > 0


def test_a_batch_that_runs_together_keeps_scores_back_too() -> None:
    harness = Harness(Setup(num_blocks=40, block_size=4, strategy="static", batch_size=2))
    harness.add(request("a", PROMPT, output=None, max_tokens=0, prompt_logprobs=0), request("b", [1], output=3))
    assert [harness.step(), harness.step()] == [[], []]
    events = harness.drain()
    assert kinds(events) == [PromptScoredEvent, TokensEvent, FinishedEvent, TokensEvent, TokensEvent, FinishedEvent]
    timings = harness.clients[0].ended.timings
    assert timings.ttft_ms is None and timings.other_ms > 0


def test_an_aborted_request_gets_no_more_scores() -> None:
    harness = Harness(Setup(num_blocks=40, block_size=4, token_budget=4, depth=2))
    harness.add(request("a", PROMPT, output=1, prompt_logprobs=0))
    harness.plan()
    harness.plan()
    assert kinds(harness.commit()) == [PromptScoredEvent]
    harness.abort("a")
    harness.add(request("a", [1] * 3, output=1))  # the name is free, and what is in flight is not this one's
    assert harness.commit() == []
    harness.drain()
    assert len(harness.clients[0].scores) == 4


def test_a_prompt_of_the_models_length_may_be_scored_but_not_answered() -> None:
    harness = Harness(Setup(num_blocks=40, block_size=4, token_budget=16, max_model_len=12))
    scoring = request("a", [1] * 12, output=None, max_tokens=0, prompt_logprobs=0)
    assert "length is 12 tokens, of which at least one is left for the answer" in harness.refuse(request("b", [1] * 12))
    longer = request("c", [1] * 13, output=None, max_tokens=0)
    assert "length is 12 tokens, and the prompt is too long: it has 13 tokens; shorten it to 12" in harness.refuse(
        longer
    )
    harness.add(scoring)
    harness.drain()
    assert len(harness.clients[0].scores) == 11


def test_lengths_of_zero_teach_the_predictor_nothing() -> None:
    seen: list[int] = []

    class Noting(Quantiles):
        def observe(self, request: Request, output_tokens: int) -> None:
            seen.append(output_tokens)

    scheduler = Scheduler(SchedulerConfig(ROOMY.capacity, Chunked(16), Fcfs(), predictor=Noting()))
    loop = EngineLoop(scheduler, NullExecutor(ROOMY.capacity), VirtualClock())
    loop.add(request("a", PROMPT, output=None, max_tokens=0))
    loop.add(request("b", PROMPT, output=2))
    loop.run()
    assert seen == [2]


def test_samples_of_a_prompt_whose_scores_are_lost_wait_for_them_again() -> None:
    """The first sample is in flight behind a step that memory was too short for; its siblings have a row meanwhile."""
    harness = Harness(Setup(num_blocks=40, block_size=4, max_rows=2, strategy="continuous", depth=2))
    harness.add(request("a", PROMPT[:2], max_tokens=1), request("b", PROMPT[:7], output=2, prompt_logprobs=0, n=3))
    harness.plan("memory")
    harness.plan()
    harness.drain()
    first, second = harness.clients
    assert first.ended.finishes[0].reason == "error"
    assert second.scores == scores_alone(second.request)
    assert [len(tokens) for tokens in second.tokens] == [2, 2, 2]


def test_samples_go_on_where_the_scores_of_their_prompt_are_there() -> None:
    """The second step has a token of the first sample, and the prompt that there is no memory for."""
    harness = Harness(Setup(num_blocks=40, block_size=4, token_budget=3, strategy="continuous"))
    harness.add(request("b", PROMPT[:3], output=6, prompt_logprobs=0, n=3))
    harness.step()
    harness.add(request("a", PROMPT[:1], output=1, arrival=-1.0))
    harness.step("memory")
    scored, failed = harness.clients
    assert len(scored.scores) == 2 and failed.ended.finishes[0].reason == "error"
    assert not inside.held_back(harness.scheduler)
    harness.drain()
    assert [len(tokens) for tokens in scored.tokens] == [6, 6, 6]
