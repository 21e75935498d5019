"""Pooled requests: nothing is sampled, and one vector comes before the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from inflight.core.types.events import Event, Finish, FinishedEvent, PooledEvent
from inflight.core.types.request import Request
from inflight.core.types.sampling import NO_SAMPLING, PoolingParams, SamplingParams

from .builders import request
from .harness import Harness, Setup, vector_alone

ROOMY = Setup(num_blocks=40, block_size=4, max_rows=3, token_budget=4)
PROMPT = (0, 1, 1, 0, 1, 0, 0, 0, 1, 1)


def pooled(name: str = "p", prompt: tuple[int, ...] = PROMPT, **fields: Any) -> Request:
    given = {"params": NO_SAMPLING, "pooling": PoolingParams(), **fields}
    return Request(request_id=name, prompt_token_ids=prompt, **given)


def kinds(events: list[Event]) -> list[type]:
    return [type(event) for event in events]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("strategy", ["static", "dynamic", "continuous", "chunked", "adaptive"])
def test_a_vector_comes_when_the_prompt_is_computed(strategy: Any, depth: int) -> None:
    harness = Harness(replace(ROOMY, strategy=strategy, depth=depth))
    harness.add(pooled())
    assert kinds(harness.drain()) == [PooledEvent, FinishedEvent]
    (client,) = harness.clients
    assert client.vector == vector_alone(client.request) and client.ended.finishes == (Finish("length"),)
    chunks = [chunk for plan in harness.plans for chunk in plan.chunks]
    assert [chunk.pool for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert not any(chunk.sample for chunk in chunks)


def test_it_shares_prefixes_but_computes_its_last_token() -> None:
    harness = Harness(ROOMY)
    harness.add(request("a", PROMPT[:8], output=1))
    harness.drain()
    harness.add(pooled("p", PROMPT[:8]), pooled("q"))
    harness.drain()
    assert [one.ended.timings.cached_tokens for one in harness.clients] == [0, 4, 8]
    assert [one.vector for one in harness.clients[1:]] == [vector_alone(one.request) for one in harness.clients[1:]]


def test_after_a_preemption_it_is_pooled_once() -> None:
    harness = Harness(Setup(num_blocks=6, block_size=2, max_rows=2, token_budget=3))
    harness.add(request("a", [0] * 2, output=9))
    harness.step()
    harness.add(pooled("p", PROMPT[:8]))
    harness.until_preempted()
    harness.drain()
    assert harness.clients[1].vector == vector_alone(harness.clients[1].request)


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
def test_nothing_may_be_said_of_sampling(fields: dict[str, Any], sentence: str) -> None:
    harness = Harness(ROOMY)
    assert sentence in harness.refuse(pooled(**fields))


def test_where_nothing_is_pooled_it_is_refused() -> None:
    class Without(Setup):
        @property
        def capacity(self):  # type: ignore[no-untyped-def]
            return structs.replace(super().capacity, embedding_size=0)

    harness = Harness(Without())
    assert "vectors have 0 numbers" in harness.refuse(pooled())


def test_one_that_was_aborted_gets_no_vector() -> None:
    harness = Harness(replace(ROOMY, token_budget=16))
    harness.add(pooled())
    harness.plan()
    harness.abort("p")
    assert harness.commit() == []
    harness.drain()


def test_a_vector_that_cannot_be_had_ends_its_request_alone() -> None:
    harness = Harness(replace(ROOMY, token_budget=16))
    harness.add(pooled(), request("a", [1], output=2))
    harness.plan()
    plan, result = harness.flights[0]
    (one,) = result.pooled
    harness.flights[0] = plan, structs.replace(result, pooled=(structs.replace(one, vector=(), error="Not finite."),))
    events = harness.scheduler.commit(*harness.flights.popleft(), harness.now)
    ends = {event.request_id: event.finishes for event in events if isinstance(event, FinishedEvent)}
    assert ends == {"p": (Finish("error", detail="Not finite."),)}
    assert not any(isinstance(event, PooledEvent) for event in events)
