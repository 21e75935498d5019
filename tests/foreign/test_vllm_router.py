"""vllm-router before two servers, with each of its policies: answers are a server's own, and go where the policy says.

Each test asks the servers what came to them, since a policy's effect shows nowhere else.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from server.conftest import Server

from .cases import KEY, MESSAGES, MODEL, TEXT
from .environments import Environment
from .routed import Router, kv_event_addresses, streamed
from .tap import Tap

pytestmark = pytest.mark.foreign
CLIENT = "vllm_router"
SPREADING = ("round_robin", "random", "power_of_two")
BY_SESSION = ("consistent_hash", "sticky_least_loaded")
BY_PREFIX = ("cache_aware", "kv_aware")
EVENTS = {"enable_kv_cache_events": True, "endpoint": "tcp://*:*", "replay_endpoint": "tcp://*:*"}
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
COMPLETION = {"model": MODEL, "prompt": TEXT, "temperature": 0, "max_tokens": 24, "return_token_ids": True}
CONVERSATION = {"model": MODEL, "messages": MESSAGES, "temperature": 0.8, "seed": 7, "max_tokens": 24}
CASES = [(COMPLETIONS, COMPLETION), (CHAT, {**CONVERSATION, "return_token_ids": True})]
BEARER = {"Authorization": f"Bearer {KEY}"}
STORY = "A block of keys and values holds sixteen positions of a sequence, so that a beginning is computed once. " * 5


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Server]]:
    asked = ("--api-key", KEY, "--metrics-names", "vllm", "--kv-events-config", json.dumps(EVENTS))
    running = [Server(*asked) for _ in range(2)]
    for one in running:
        one.ready()
    yield running
    for one in running:
        assert one.stop() == 0, "".join(one.log)


@pytest.fixture(scope="module")
def server_taps(servers: list[Server], open_tap: Callable[[Server], Tap]) -> list[Tap]:
    """Between the router and each server."""
    return [open_tap(one) for one in servers]


@pytest.fixture(scope="module", params=(*SPREADING, *BY_SESSION, *BY_PREFIX))
def policy(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def router(environment: Environment, servers: list[Server], server_taps: list[Tap], policy: str) -> Iterator[Router]:
    workers, options = [tap.url for tap in server_taps], []
    if policy == "kv_aware":
        options += ["--kv-event-model", MODEL]
        for worker, server in zip(workers, servers, strict=True):
            live, missed = kv_event_addresses(server)
            options += ["--kv-event-source", f"{worker}={live}", "--kv-event-replay-source", f"{worker}={missed}"]
    with Router(environment, workers, policy, *options) as running:
        yield running


class Work:
    """Return the requests that came to each server since this was made."""

    def __init__(self, servers: Sequence[Server]):
        self._servers = servers
        self._before = self._now()

    def _now(self) -> list[tuple[float, float]]:
        return [_requests_and_hits(one) for one in self._servers]

    @property
    def requests(self) -> list[float]:
        return [now[0] - before[0] for now, before in zip(self._now(), self._before, strict=True)]

    @property
    def hits(self) -> list[float]:
        """Tokens that were found in the prefix cache."""
        return [now[1] - before[1] for now, before in zip(self._now(), self._before, strict=True)]


def _requests_and_hits(server: Server) -> tuple[float, float]:
    page = list(text_string_to_metric_families(server.get("/metrics").text))
    names = ("vllm:request_success_total", "vllm:prefix_cache_hits_total")
    samples = [sample for family in page for sample in family.samples]
    requests, hits = (sum(sample.value for sample in samples if sample.name == name) for name in names)
    return requests, hits


def ask(url_of: Router | Server, prompt: str, **headers: str) -> None:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0}
    answer = url_of.post(COMPLETIONS, body, headers={**BEARER, **headers})
    assert answer.status_code == 200, answer.text


def of(*policies: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("policy", policies, indirect=True, scope="module")


# -- every policy -----------------------------------------------------------------------------------------------------


def test_the_router_is_well_and_lists_the_model(router: Router) -> None:
    assert router.get("/health").status_code == 200
    listed = router.get("/v1/models", headers=BEARER).json()["data"]
    assert [one["id"] for one in listed] == [MODEL]


@pytest.mark.parametrize(("path", "body"), CASES, ids=["completion", "chat"])
def test_answers_are_those_of_one_server(
    router: Router, servers: list[Server], path: str, body: dict[str, Any]
) -> None:
    alone = servers[0].post(path, body, headers=BEARER).json()
    for _ in range(3):
        routed = router.post(path, body, headers=BEARER)
        assert routed.status_code == 200, routed.text
        assert routed.json()["choices"] == alone["choices"]
        assert routed.json()["usage"]["completion_tokens"] == alone["usage"]["completion_tokens"]


@pytest.mark.parametrize(("path", "body"), CASES, ids=["completion", "chat"])
def test_streams_are_those_of_one_server(
    router: Router, servers: list[Server], path: str, body: dict[str, Any]
) -> None:
    alone = servers[1].post(path, body, headers=BEARER).json()
    for _ in range(3):
        routed = streamed(router.url, path, body, headers=BEARER)
        (choice,) = alone["choices"]
        assert routed.text == (choice["text"] if path == COMPLETIONS else choice["message"]["content"])
        assert routed.token_ids == choice["token_ids"] and routed.finish_reason == choice["finish_reason"]
        assert routed.done and routed.usage is not None
        assert routed.usage["completion_tokens"] == alone["usage"]["completion_tokens"]


def test_refusals_come_through_in_the_servers_words(router: Router, servers: list[Server]) -> None:
    """Not a mistake that the router could mend by asking the other server."""
    for body, status in (({**COMPLETION, "min_tokens": 99}, 400), ({**COMPLETION, "model": "another"}, 404)):
        routed, alone = (one.post(COMPLETIONS, body, headers=BEARER) for one in (router, servers[0]))
        assert (routed.status_code, routed.json()) == (alone.status_code, alone.json())
        assert alone.status_code == status
    assert router.post(COMPLETIONS, COMPLETION).status_code == 401


def test_what_routers_say_in_headers_reaches_the_server(router: Router) -> None:
    """The body's own target would be refused in these words; a header's is, too, so it was read there."""
    for header in ("x-slo-ttft-ms", "x-llm-d-slo-tpot-ms"):
        refused = router.post(COMPLETIONS, COMPLETION, headers={**BEARER, header: "soon"})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == header


# -- where requests go ------------------------------------------------------------------------------------------------


@of(*SPREADING)
def test_both_servers_get_work(router: Router, servers: list[Server], policy: str) -> None:
    work = Work(servers)
    with ThreadPoolExecutor(4) as clients:
        list(clients.map(lambda number: ask(router, f"{number} requests are waiting"), range(24)))
    first, second = work.requests
    assert first + second == 24 and min(first, second) > 0
    if policy == "round_robin":
        assert first == second


@of(*BY_SESSION)
def test_a_session_stays_with_a_server(router: Router, servers: list[Server], policy: str) -> None:
    used: set[int] = set()
    for session in range(24):
        work = Work(servers)
        for turn in range(3):
            ask(router, f"Session {session}, turn {turn}", **{"x-session-id": f"{policy}-{session}"})
        assert sorted(work.requests) == [0, 3]
        used.add(work.requests.index(3))
        if len(used) == 2:
            return
    raise AssertionError("all sessions are with one server")


@of("cache_aware")
def test_a_beginning_stays_with_a_server(router: Router, servers: list[Server]) -> None:
    work, begins = Work(servers), f"So it begins. {STORY}"
    for number in range(6):
        ask(router, f"{begins} What is question {number}?")
    assert sorted(work.requests) == [0, 6]
    assert max(work.hits) > 5 * 16 and min(work.hits) == 0


@of(*BY_PREFIX)
def test_prompts_are_rendered_by_the_servers(router: Router, server_taps: list[Tap]) -> None:
    before = [len(tap.seen) for tap in server_taps]
    router.post(COMPLETIONS, COMPLETION, headers=BEARER)
    router.post(CHAT, CONVERSATION, headers=BEARER)
    seen = [one for tap, number in zip(server_taps, before, strict=True) for one in tap.seen[number:]]
    rendered = [one for one in seen if one.path.endswith("/render")]
    assert {one.path for one in rendered} == {f"{COMPLETIONS}/render", f"{CHAT}/render"}
    assert all(one.answered.startswith(b"HTTP/1.1 200") for one in rendered)


@of("kv_aware")
@pytest.mark.parametrize("number", [0, 1, 0, 1])
def test_what_a_server_computed_for_others_is_known_by_its_events(
    router: Router, servers: list[Server], number: int
) -> None:
    """Whichever server has a beginning gets what begins so, though the router never sent it there."""
    before, begins = hits(router), f"{time.monotonic()} is when this begins. {STORY}"
    ask(servers[number], begins)
    work = Work(servers)

    def found() -> bool:
        ask(router, f"{begins} And then?")
        return hits(router) > before

    assert servers[0].settled(found), "no beginning was found by events"
    assert work.requests[number] >= 1 and work.hits[number] > 5 * 16


def hits(router: Router) -> float:
    """Requests whose beginnings the router knew to be cached, by what the servers published."""
    return router.count("vllm_router_kv_placement_lookups_total", result="hit")
