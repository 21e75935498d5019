"""KV events of real servers: a subscriber follows along, closes a gap, and finds the same hashes on every replica."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator

import pytest

from tests.engine.kv_events.subscriber import AllBlocksCleared, Mirror, Subscriber, decode

from .conftest import Server
from .test_life import run

STORY = "Once upon a time there was a little boy who lived in a house by the sea. " * 4
OPTIONS = {"enable_kv_cache_events": True, "endpoint": "tcp://*:*", "replay_endpoint": "tcp://*:*", "topic": "kv@a@b"}


def given(**options: object) -> list[str]:
    return ["--kv-events-config", json.dumps({**OPTIONS, **options})]


def subscriber_of(server: Server) -> Subscriber:
    log = "".join(server.log).replace("0.0.0.0", "127.0.0.1")
    found = re.search(r"KV events: published at (\S+), missed ones are asked for at (\S+?)\.[\s\"]", log)
    assert found, log
    return Subscriber(found[1], found[2], b"kv@")


@pytest.fixture
def subscribe() -> Iterator[Callable[[Server], Subscriber]]:
    opened: list[Subscriber] = []

    def subscribe_one(server: Server) -> Subscriber:
        opened.append(subscriber_of(server))
        return opened[-1]

    yield subscribe_one
    for one in opened:
        one.close()


def ask(server: Server, prompt: str, **settings: object) -> int:
    """Tokens that the server found in its cache."""
    body = {"prompt": prompt, "max_tokens": 40, "temperature": 0, "ignore_eos": True, **settings}
    usage = server.post("/v1/completions", body).raise_for_status().json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def replayed(subscriber: Subscriber) -> Mirror:
    """Return the state of a subscriber that has read all messages."""
    mirror = Mirror()
    for _, payload in subscriber.ask(0):
        mirror.hear(payload)
    return mirror


def test_a_subscriber_follows_and_closes_a_gap(
    start: Callable[..., Server], subscribe: Callable[[Server], Subscriber]
) -> None:
    server = start(*given())
    late = subscribe(server)
    assert [type(event) for event in decode(late.ask(0)[0][1]).events] == [AllBlocksCleared]
    ask(server, STORY)  # perhaps before the subscription has come through: then this is the gap
    ask(server, STORY + "And then", cache_salt="mine")
    live: dict[int, bytes] = {}
    while (message := late.hear(1.0)) is not None:
        topic, number, payload = message
        assert topic == b"kv@a@b"
        live[number] = payload
    kept = dict(late.ask(0))
    assert list(kept) == list(range(len(kept))) and live.items() <= kept.items()
    missing = late.ask(3)
    assert missing == [(number, payload) for number, payload in kept.items() if number >= 3]
    mirror = replayed(late)
    assert {salt for (salt, _, _), _ in mirror.contents} == {"", "mine"}
    lengths = {len(tokens) for (salt, _, tokens), _ in mirror.contents if salt == ""}
    found = ask(server, STORY, max_tokens=1)
    assert found in lengths and max(lengths) >= found + 32, "the answer's blocks are published, too"


@pytest.mark.wide
def test_replicas_name_the_same_content_alike_and_evictions_are_reported(
    start: Callable[..., Server], subscribe: Callable[[Server], Subscriber]
) -> None:
    """One is short of memory, and has HTTP in a process of its own."""
    large = start(*given())
    small = start(
        *given(), "--kv-memory", "0.002", "--api-processes", "1", "--preemption", "swap", "--swap-space", "0.01"
    )
    prompts = [f"{place}. {STORY}" for place in range(12)]
    subscribers = [subscribe(one) for one in (large, small)]
    for prompt in prompts:
        for server in (large, small):
            ask(server, prompt)
    known, kept = (replayed(one) for one in subscribers)
    assert kept.cached.keys() < known.cached.keys(), "nothing was evicted, or a hash is another there"
    assert {name for name in kept.named if name in known.named} == kept.named.keys()
    assert all(known.named[name] == content for name, content in kept.named.items())
    assert ask(small, prompts[-1], max_tokens=1) > 0 and small.stop() == 0 and large.stop() == 0


@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        (["--no-prefix-caching", *given()], "--no-prefix-caching leaves it empty", 2),
        (["--kv-events-config", '{"enable": true}'], "known are enable_kv_cache_events", 2),
        (given(hwm="many"), 'hwm is "many"; give a whole number', 2),
        (given(endpoint="*:5557"), "write it like tcp://*:5557", 1),
    ],
)
def test_what_cannot_be_is_reported_at_the_start(options: list[str], message: str, code: int) -> None:
    ended = run("--port", "0", *options)
    assert ended.returncode == code and message in ended.stderr and "Traceback" not in ended.stderr


def test_an_address_in_use_is_reported_before_anything_is_loaded() -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        ended = run("--port", "0", *given(replay_endpoint=f"tcp://*:{other.getsockname()[1]}"))
    assert ended.returncode == 1 and "something listens there already" in ended.stderr
    assert "loading" not in ended.stderr and "Traceback" not in ended.stderr
