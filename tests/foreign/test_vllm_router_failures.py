"""vllm-router when a server is killed, drains or comes back: nothing that can be answered is lost.

The router's own doing (asking again, taking a server out) is part of what is tested, with the settings that are
on docs/scaling.md.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from server.conftest import Server

from .cases import MODEL
from .environments import Environment
from .routed import Router, Streamed, lines, streamed

pytestmark = pytest.mark.foreign
CLIENT = "vllm_router"
COMPLETIONS = "/v1/completions"
SHORT = {"model": MODEL, "prompt": "A lane is", "temperature": 0, "max_tokens": 12}
# So many samples that their steps take seconds, and that two runs of them are still the same.
LONG = {**SHORT, "n": 48, "seed": 7, "temperature": 1, "max_tokens": 900, "ignore_eos": True}
CAREFUL = ("--health-check-interval-secs", "1", "--health-failure-threshold", "1", "--health-success-threshold", "1")
# A request is tried five times: a server must be given up before that, though a policy would choose it each time.
CAREFUL += ("--cb-failure-threshold", "2", "--cb-timeout-duration-secs", "2")


@pytest.fixture
def pair(start: Callable[..., Server]) -> list[Server]:
    """Speculation off, so that a long answer takes its time."""
    both = [start("--metrics-names", "vllm", "--speculation", "off", ready=False) for _ in range(2)]
    return [one.ready() for one in both]


def running(server: Server) -> float:
    return server.metric("vllm:num_requests_running")


def answered(server: Server) -> float:
    return server.metric("vllm:request_success_total")


def broken(url: str, begun: threading.Event) -> tuple[Streamed, Exception | None]:
    """A long stream; how far it came, and how it ended."""
    whole = Streamed()
    try:
        for line in lines(url, COMPLETIONS, LONG):
            whole.take(line)
            if len(whole.text) > 20:
                begun.set()
    except httpx.TransportError as error:
        return whole, error
    finally:
        begun.set()
    return whole, None


@pytest.mark.parametrize("policy", ["round_robin", "power_of_two", "cache_aware"])
def test_a_killed_server_ends_its_stream_with_an_error_and_the_other_goes_on(
    environment: Environment, pair: list[Server], policy: str
) -> None:
    with Router(environment, [one.url for one in pair], policy, *CAREFUL) as router, ThreadPoolExecutor() as clients:
        begun = threading.Event()
        stream = clients.submit(broken, router.url, begun)
        assert begun.wait(30)
        victim, other = sorted(pair, key=running, reverse=True)
        assert running(victim) > 0 == running(other)
        beside = clients.submit(streamed, other.url, COMPLETIONS, LONG)
        victim.lose_power()
        half, error = stream.result(30)
        assert half.text and not half.done and half.finish_reason is None
        assert error is not None or half.error is not None, "the stream ended as if it were whole"
        assert [router.post(COMPLETIONS, SHORT).status_code for _ in range(12)] == [200] * 12
        assert beside.result(60).done and answered(other) == 13
        assert other.settled(lambda: router.healthy() == 1)


def test_a_server_that_drains_loses_no_request(environment: Environment, pair: list[Server]) -> None:
    """Streams in flight come to their end there; what comes meanwhile is answered by the other."""
    alone = pair[0].post(COMPLETIONS, SHORT).json()["choices"][0]["text"]
    whole = streamed(pair[1].url, COMPLETIONS, LONG).texts
    workers = [one.url for one in pair]
    with Router(environment, workers, "round_robin", *CAREFUL) as router, ThreadPoolExecutor(12) as clients:
        long = [clients.submit(streamed, router.url, COMPLETIONS, LONG) for _ in range(2)]
        assert pair[0].settled(lambda: min(running(pair[0]), running(pair[1])) > 0)
        short = [clients.submit(paced, router) for _ in range(60)]
        time.sleep(0.5)
        pair[0].process.send_signal(signal.SIGTERM)
        assert [one.result(60) for one in short] == [alone] * 60
        ends = [one.result(60) for one in long]
        assert all(one.done and one.texts == whole for one in ends)
        assert pair[0].process.wait(30) == 0
        assert router.post(COMPLETIONS, SHORT).status_code == 200


def paced(router: Router) -> str:
    time.sleep(0.25)
    answer = router.post(COMPLETIONS, SHORT)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def test_a_server_that_comes_back_gets_work_again(
    environment: Environment, pair: list[Server], start: Callable[..., Server]
) -> None:
    workers = [one.url for one in pair]
    with Router(environment, workers, "round_robin", *CAREFUL) as router:
        assert pair[0].stop() == 0
        assert pair[1].settled(lambda: router.healthy() == 1)
        port = pair[0].url.rpartition(":")[2]
        again = start("--metrics-names", "vllm", "--port", port)
        assert again.settled(lambda: router.healthy() == 2)

        def asked() -> bool:
            assert router.post(COMPLETIONS, SHORT).status_code == 200
            return answered(again) > 0

        assert again.settled(asked)


def test_a_full_server_is_not_the_end(environment: Environment, start: Callable[..., Server]) -> None:
    """Where one refuses because its queue is full, the router asks the other before it says so."""
    full: dict[str, Any] = {"ready": False}
    asked = ("--speculation", "off", "--max-num-seqs", "1", "--admission", "queue", "--max-queued-requests", "2")
    pair = [start(*asked, "--metrics-names", "vllm", **full), start("--metrics-names", "vllm", **full)]
    workers = [one.ready().url for one in pair]
    with Router(environment, workers, "round_robin") as router, ThreadPoolExecutor(4) as clients:
        done = threading.Event()
        busy = [clients.submit(keep_busy, pair[0], done) for _ in range(3)]
        assert pair[0].settled(lambda: pair[0].metric("vllm:num_requests_waiting") == 2)
        answers = [router.post(COMPLETIONS, SHORT).status_code for _ in range(20)]
        done.set()
        assert answers == [200] * 20
        assert router.count("vllm_router_retries_total") > 0, "the full server refused nothing"
        for one in busy:
            one.result(60)


def keep_busy(server: Server, done: threading.Event) -> None:
    """One of those who fill its row and its queue, with the next request when the last is answered."""
    while not done.is_set():
        server.post(COMPLETIONS, {**LONG, "n": 1, "max_tokens": 900})
