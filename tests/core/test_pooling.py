"""Pooled requests: nothing is sampled, and one vector comes before the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from inflight.core.types.events import Finish, FinishedEvent, PooledEvent
from inflight.core.types.request import Request
from inflight.core.types.sampling import NO_SAMPLING, PoolingParams, SamplingParams

from .builders import request
from .harness import Harness, Setup

ROOMY = Setup(num_blocks=40, block_size=4, max_rows=3, token_budget=4)
PROMPT = (0, 1, 1, 0, 1, 0, 0, 0, 1, 1)


def pooled(name: str = "p", prompt: tuple[int, ...] = PROMPT, **fields: Any) -> Request:
    given = {"params": NO_SAMPLING, "pooling": PoolingParams(), **fields}
    return Request(request_id=name, prompt_token_ids=prompt, **given)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("strategy", ["static", "dynamic", "continuous", "chunked", "adaptive"])
def test_a_vector_comes_when_the_prompt_is_computed(strategy: Any, depth: int) -> None:
    harness = Harness(replace(ROOMY, strategy=strategy, depth=depth), pooled())
    assert [type(event) for event in harness.drain()] == [PooledEvent, FinishedEvent]
    assert harness.clients[0].ended.finishes == (Finish("length"),)
    chunks = [chunk for plan in harness.plans for chunk in plan.chunks]
    assert [chunk.pool for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert not any(chunk.sample for chunk in chunks)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"params": SamplingParams(max_tokens=3)}, "its max_tokens is 3; leave that at 0"),
        ({"params": SamplingParams()}, "its max_tokens is 16"),
        ({"params": replace(NO_SAMPLING, n=2)}, "its n is 2; leave that at 1"),
        ({"params": replace(NO_SAMPLING, temperature=0.5)}, "its temperature is 0.5"),
        ({"params": replace(NO_SAMPLING, prompt_logprobs=1)}, "its prompt_logprobs is 1"),
        ({"forced_output_tokens": 4}, "its output_tokens is 4; leave it out"),
    ],
)
def test_sampling_settings_are_refused(fields: dict[str, Any], sentence: str) -> None:
    assert sentence in Harness(ROOMY).refuse(pooled(**fields))


def test_a_model_without_vectors_refuses_it() -> None:
    class Without(Setup):
        @property
        def capacity(self) -> Any:
            return structs.replace(super().capacity, embedding_size=0)

    assert "vectors have 0 numbers" in Harness(Without()).refuse(pooled())


def test_a_vector_that_is_not_finite_ends_its_request_alone() -> None:
    setup = replace(ROOMY, token_budget=16)
    scheduler = setup.scheduler()
    for one in (pooled(), request("a", [1], output=2)):
        scheduler.add(one, 0.0)
    plan = scheduler.plan(0.0)
    result = setup.executor().submit(plan).result()
    bad = tuple(structs.replace(one, vector=(), error="Not finite.") for one in result.pooled)
    events = scheduler.commit(plan, structs.replace(result, pooled=bad), 0.0)
    ends = {event.request_id: event.finishes for event in events if isinstance(event, FinishedEvent)}
    assert ends == {"p": (Finish("error", detail="Not finite."),)}
    assert not any(isinstance(event, PooledEvent) for event in events)
