"""More than can be served: refused with an error and seconds, and the rest is served as before."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai

from .conftest import Server

LONG: dict[str, Any] = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}


def hold(server: Server, count: int, **more: Any) -> list[Any]:
    """Streams that have begun (or wait), and stay open."""
    opened = []
    clients = [httpx.Client(timeout=60, headers=more.get("headers")) for _ in range(count)]  # made before any asks
    for client in clients:
        response = client.send(client.build_request("POST", server.url + "/v1/completions", json=LONG), stream=True)
        assert response.status_code == 200
        opened.append(response)
    return opened


def test_a_full_queue_is_reported_with_the_time_to_wait(start: Callable[..., Server]) -> None:
    server = start("--max-num-seqs", "1", "--max-queued-requests", "2")
    asking = server.client().with_options(max_retries=0).completions

    def ask(_: int) -> openai.RateLimitError | None:
        try:
            asking.create(model="built-in", prompt="Once", max_tokens=900, extra_body={"ignore_eos": True})
        except openai.RateLimitError as error:
            return error
        return None

    with ThreadPoolExecutor(12) as pool:  # more at once than one that runs and two that wait
        refused = [error for error in pool.map(ask, range(12)) if error is not None]
    assert refused
    for caught in refused:
        assert "2 requests wait already" in str(caught)
        assert int(caught.response.headers["retry-after"]) >= 1
        assert caught.body["retry_after_s"] > 0  # type: ignore[index]
    assert server.settled(lambda: server.post("/v1/completions", {"prompt": "x"}).status_code == 200)


def test_more_than_may_ever_wait_is_refused_without_a_time(start: Callable[..., Server]) -> None:
    server = start("--max-queued-requests", "4")
    for body, field in (({"prompt": "x", "n": 5}, "n"), ({"prompt": ["x", "y", "z"], "n": 2}, "prompt")):
        refused = server.post("/v1/completions", {**body, "max_tokens": 1})
        assert refused.status_code == 400 and "retry-after" not in refused.headers
        assert refused.json()["error"]["param"] == field
    assert server.post("/v1/completions", {"prompt": ["x", "y"], "n": 2, "max_tokens": 1}).status_code == 200


def test_a_target_that_cannot_be_met_is_refused_at_the_door(start: Callable[..., Server]) -> None:
    server = start("--max-num-seqs", "2")
    for _ in range(3):
        server.post("/v1/completions", {"prompt": "learn", "max_tokens": 60, "ignore_eos": True})
    opened = hold(server, 6)
    body = {"prompt": "x", "max_tokens": 2, "slo": {"ttft_ms": 1}}
    refused = server.post("/v1/completions", body)
    assert refused.status_code == 429 and "target" in refused.json()["error"]["message"]
    for one in opened:
        one.close()
    assert server.settled(lambda: "0 calls" in server.get("/health").json()["detail"])
    assert server.post("/v1/completions", body).status_code == 200


def test_too_many_streams(start: Callable[..., Server]) -> None:
    server = start("--max-streams", "2")
    opened = hold(server, 2)
    refused = server.post("/v1/completions", {"prompt": "x"})
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "too_many_streams"
    for one in opened:
        one.close()


def test_the_batch_lane_answers_beside_the_interactive_one(server: Server) -> None:
    answers = {}

    def ask(tier: str) -> None:
        body = {"prompt": "What is", "max_tokens": 20, "service_tier": tier, "timings": True}
        answers[tier] = server.post("/v1/completions", body).json()

    threads = [threading.Thread(target=ask, args=(tier,)) for tier in ("auto", "default", "priority", "flex")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {tier: answer["timings"]["lane"] for tier, answer in answers.items()} == {
        "auto": "interactive", "default": "interactive", "priority": "interactive", "flex": "batch",
    }  # fmt: skip
    assert len({answer["choices"][0]["text"] for answer in answers.values()}) == 1


def test_a_tenants_flood_refuses_another_nothing_below_its_share(start: Callable[..., Server]) -> None:
    server = start("--policy", "fair", "--max-num-seqs", "2", "--max-queued-requests", "256")
    flood = {**LONG, "n": 32, "user": "flood"}
    with httpx.Client(base_url=server.url, timeout=60) as client, contextlib.ExitStack() as opened:
        for _ in range(16):
            answer = opened.enter_context(client.stream("POST", "/v1/completions", json=flood))
            if answer.status_code == 429:
                answer.read()
                break
        else:
            raise AssertionError("the flood was never refused")
        assert "of them are this tenant's, whose share is 256" in answer.json()["error"]["message"]

        def ask(number: int) -> int:
            body = {"prompt": f"Say {number}", "max_tokens": 2, "n": 4, "user": "light"}
            return client.post("/v1/completions", json=body).status_code

        with ThreadPoolExecutor(30) as crowd:
            assert set(crowd.map(ask, range(30))) == {200}
