"""vllm-router between prefill and decode servers: it asks the one, then the other; keys and values go between them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from server.conftest import Server

from .cases import MODEL
from .environments import Environment
from .routed import Router, streamed

pytestmark = pytest.mark.foreign
CLIENT = "vllm_router"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
STORY = "A block of keys and values holds sixteen positions of a sequence, so that a beginning is computed once. " * 4
DRAWN = {"model": MODEL, "temperature": 0.8, "seed": 7, "max_tokens": 24, "return_token_ids": True}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Server]]]:
    """Two prefill servers, of which one is to be killed, and a decode server. Without keys: between such servers the
    router passes none on."""
    secret = tmp_path_factory.mktemp("peers") / "secret"
    secret.write_text("a secret of the tests, no more")
    roles = ("prefill", "prefill", "decode")
    asked = ("--threads", "1", "--kv-peer-secret-file", str(secret))
    running = [Server("--role", role, *asked) for role in roles]
    for one in running:
        one.ready(120)
    yield {role: [one for one, its in zip(running, roles, strict=True) if its == role] for role in set(roles)}
    for one in running:
        one.stop()


@pytest.fixture
def router(environment: Environment, pool: dict[str, list[Server]]) -> Iterator[Router]:
    alive = [one for one in pool["prefill"] if one.process.poll() is None]
    asked = [option for one in alive for option in ("--prefill", one.url)]
    asked += [option for one in pool["decode"] for option in ("--decode", one.url)]
    with Router(
        environment, [], "round_robin", "--vllm-pd-disaggregation", "--kv-connector", "nixl", *asked
    ) as running:
        yield running


def body(path: str, number: int) -> dict[str, Any]:
    text = f"Story {number}. {STORY}"
    return (
        {**DRAWN, "prompt": text} if path == COMPLETIONS else {**DRAWN, "messages": [{"role": "user", "content": text}]}
    )


def token_ids(answer: Any) -> list[int]:
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


def pulled(pool: dict[str, list[Server]]) -> float:
    """Tokens of prompts that the decode server did not compute."""
    return sum(one.metric("inflight_cached_prompt_tokens_total") for one in pool["decode"])


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_answers_are_those_of_one_server(router: Router, pool: dict[str, list[Server]], path: str) -> None:
    for number in range(3):
        before = pulled(pool)
        asked = body(path, number)
        through = token_ids(router.post(path, asked))
        assert pulled(pool) - before >= 64, "the prompt was computed where it was to be decoded"
        assert through == token_ids(pool["prefill"][0].post(path, asked))


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_streams_too(router: Router, pool: dict[str, list[Server]], path: str) -> None:
    asked = body(path, 7)
    before = pulled(pool)
    whole = streamed(router.url, path, asked)
    assert whole.done and whole.error is None and pulled(pool) > before
    assert whole.token_ids == token_ids(pool["prefill"][0].post(path, asked))


def test_a_prefill_server_that_is_killed_takes_no_answer_with_it(router: Router, pool: dict[str, list[Server]]) -> None:
    """The router asks the other one, or says in a sentence that it could not."""
    expected = token_ids(pool["prefill"][0].post(COMPLETIONS, body(COMPLETIONS, 9)))
    pool["prefill"][1].stop(signal.SIGKILL)
    answers = [router.post(COMPLETIONS, body(COMPLETIONS, 9)) for _ in range(4)]
    good = [one for one in answers if one.status_code == 200]
    assert good and all(token_ids(one) == expected for one in good)
    assert all("error" in one.text for one in answers if one.status_code != 200)
