"""Prompt scoring and requests that sample nothing: what plans ask for, their events, and what they cost others."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.core.estimation.output_length import Quantiles
from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import Event, FinishedEvent, PromptScoredEvent, TokensEvent
from inflight.core.types.request import Request
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.testing.null import NullExecutor

from . import inspect_scheduler as inside
from .builders import request
from .harness import Harness, Setup

PROMPT = [0, 1, 1, 0, 1, 0, 0, 0, 1, 1]


def roomy(*requests: Request, **more: Any) -> Harness:
    given = {"num_blocks": 40, "block_size": 4, "max_rows": 3, "token_budget": 4, **more}
    return Harness(Setup(**given), *requests)


def scoring(name: str = "a", prompt: list[int] = PROMPT, output: int | None = None, **params: Any) -> Request:
    """Ask for the scores of a prompt, and for no output unless given."""
    return request(
        name, prompt, output, **{"prompt_logprobs": 0, "max_tokens": 0 if output is None else None, **params}
    )


def kinds(events: list[Event]) -> list[type]:
    return [type(event) for event in events]


@pytest.mark.parametrize("depth", [1, 2])
def test_every_prompt_position_but_the_last_is_scored_then_tokens_come(depth: int) -> None:
    harness = roomy(scoring(max_tokens=3, prompt_logprobs=2), depth=depth)
    assert kinds(harness.drain()) == [PromptScoredEvent] * 3 + [TokensEvent] * 3 + [FinishedEvent]
    chunks = [(chunk.score, chunk.sample) for plan in harness.plans for chunk in plan.chunks]
    assert chunks == [(range(4), 0), (range(4, 8), 0), (range(8, 9), 1), (range(0), 1), (range(0), 1)]
    scores = harness.clients[0].scores
    assert [entry.token_id for entry in scores] == PROMPT[1:] and all(len(entry.top) == 2 for entry in scores)


def test_without_output_the_prompt_is_computed_and_that_is_all() -> None:
    harness = roomy(scoring())
    assert kinds(harness.drain()) == [PromptScoredEvent] * 3 + [FinishedEvent]
    chunks = [(chunk.length, chunk.sample) for plan in harness.plans for chunk in plan.chunks]
    assert chunks == [(4, 0), (4, 0), (2, 0)]
    timings = harness.timings(0)
    assert timings.ttft_ms is None and timings.prefill_ms > 0 and timings.decode_ms == 0
    assert kinds(roomy(scoring(prompt=[1])).drain()) == [FinishedEvent], "one token is a prompt without scores"


@pytest.mark.parametrize("strategy", ["static", "dynamic", "continuous", "chunked", "adaptive"])
def test_a_prompt_may_fill_the_cache_for_others(strategy: str) -> None:
    harness = roomy(strategy=strategy, token_budget=8)
    alone = {"output": None, "max_tokens": 0}
    assert harness.serve(request("a", PROMPT, **alone)) == [0]
    assert harness.serve(request("b", PROMPT, output=1), request("c", PROMPT, **alone)) == [8, 8]
    assert harness.reasons == ["length"] * 3


def test_scoring_takes_nothing_from_the_cache_but_gives() -> None:
    harness = roomy()
    assert harness.serve(request("a", PROMPT, output=1)) == [0]
    assert harness.serve(scoring("b", output=1, cache_salt="mine"), scoring("c", output=1)) == [0, 0]
    assert harness.serve(request("d", PROMPT, output=1, cache_salt="mine")) == [8]


def test_a_batch_that_runs_together_keeps_scores_back_too() -> None:
    harness = roomy(scoring(), request("b", [1], output=3), strategy="static", batch_size=2)
    assert [harness.step(), harness.step()] == [[], []]
    events = kinds(harness.drain())
    assert events == [PromptScoredEvent, TokensEvent, FinishedEvent, TokensEvent, TokensEvent, FinishedEvent]
    assert harness.timings(0).ttft_ms is None and harness.timings(0).other_ms > 0


def test_a_prompt_of_the_models_length_may_be_scored_but_not_answered() -> None:
    harness = roomy(scoring(prompt=[1] * 12), max_model_len=12)
    words = "length is 12 tokens, of which at least one is left for the answer"
    assert words in harness.refuse(request("b", [1] * 12))
    words = "length is 12 tokens, and the prompt is too long: it has 13 tokens; shorten it to 12"
    assert words in harness.refuse(scoring("c", [1] * 13))


def test_lengths_of_zero_teach_the_predictor_nothing() -> None:
    seen: list[int] = []

    class Noting(Quantiles):
        def observe(self, request: Request, output_tokens: int) -> None:
            seen.append(output_tokens)

    capacity = Setup().capacity
    scheduler = Scheduler(SchedulerConfig(capacity, Chunked(16), Fcfs(), predictor=Noting()))
    loop = EngineLoop(scheduler, NullExecutor(capacity), VirtualClock())
    loop.add(scoring("a"))
    loop.add(request("b", PROMPT, output=2))
    loop.run()
    assert seen == [2]


def test_samples_of_a_prompt_whose_scores_are_lost_wait_for_them_again() -> None:
    """The first sample is in flight behind a step that memory was too short for; its siblings have a row meanwhile."""
    harness = roomy(max_rows=2, strategy="continuous", depth=2)
    harness.add(request("a", PROMPT[:2], max_tokens=1), scoring("b", PROMPT[:7], output=2, n=3))
    harness.plan("memory")
    harness.plan()
    harness.drain()
    assert harness.reasons == ["error", "length"]


def test_samples_go_on_where_the_scores_of_their_prompt_are_there() -> None:
    """The second step has a token of the first sample, and the prompt that there is no memory for."""
    harness = roomy(scoring("b", PROMPT[:3], output=6, n=3), token_budget=3, strategy="continuous")
    harness.step()
    harness.add(request("a", PROMPT[:1], output=1, arrival=-1.0))
    harness.step("memory")
    assert len(harness.clients[0].scores) == 2 and harness.clients[1].ended.finishes[0].reason == "error"
    assert not inside.held_back(harness.scheduler)
