"""A server with several models, asked as clients ask it; their engines are the built-in model's."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from ..conftest import Server, children
from ..test_processes import ENDLESS, Asking, owner, spread
from ..test_processes import children as api_processes

SMALL = "kv-memory = 0.05\n"
SIZE = "size = 1\n"


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def workers(server: Server) -> list[int]:
    """Models' processes."""
    return children(server, "inflight.launch.engine_process")


def states(server: Server) -> dict[str, str]:
    return {one["id"]: one["state"] for one in server.get("/v1/models").json()["data"]}


def ask(
    server: Server, model: str, tokens: int = 4, _headers: dict[str, str] | None = None, **more: Any
) -> httpx.Response:
    body = {"model": model, "prompt": "Once", "max_tokens": tokens, **more}
    return server.post("/v1/completions", body, headers=_headers)


@pytest.fixture(scope="module")
def room_for_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two models, of which one fits, two API processes, and files, so that batch jobs ask them too."""
    folder = tmp_path_factory.mktemp("pool")
    text = f'memory = 1.5\nmax-wait = 50\n[models.a]\naliases = ["first"]\n{SIZE}{SMALL}[models.b]\n{SIZE}{SMALL}'
    given = ("--models", write(folder / "models.toml", text), "--api-processes", "2")
    running = Server(*given, "--data-dir", str(folder / "data")).ready()
    yield running
    assert running.stop() == 0, "".join(running.log)
    assert "Traceback" not in "".join(running.log)
    assert not workers(running)


def test_models_are_loaded_when_they_are_called_and_give_way(room_for_one: Server) -> None:
    server = room_for_one
    listed = server.get("/v1/models").json()["data"]
    assert [one["id"] for one in listed] == ["a", "first", "b"]
    assert all(one["residency"]["memory_bytes"] == 2**30 for one in listed)
    first = ask(server, "a").json()
    assert first["model"] == "a" and ask(server, "first").json()["model"] == "first"
    assert states(server) == {"a": "loaded", "first": "loaded", "b": "unloaded"}
    second = ask(server, "b").json()
    assert second["choices"][0]["text"] == first["choices"][0]["text"]
    assert states(server) == {"a": "unloaded", "first": "unloaded", "b": "loaded"}
    assert server.settled(lambda: len(workers(server)) <= 2)  # the one at work, and one ahead
    for _ in range(6):  # by both API processes
        shown = httpx.get(f"{server.url}/v1/models/b").json()
        assert shown["max_model_len"] == 1024 and shown["capabilities"]["completions"]


def test_no_call_is_lost_while_they_take_turns(room_for_one: Server) -> None:
    def call(number: int) -> tuple[int, str]:
        time.sleep(0.05 * number)
        answer = ask(room_for_one, "ab"[number % 2], 8, seed=1, temperature=0.8)
        return answer.status_code, answer.json()["choices"][0]["text"] if answer.status_code == 200 else answer.text

    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(call, range(24)))
    assert {status for status, _ in answers} == {200}, answers
    assert len({text for _, text in answers}) == 1  # the same model, whichever process computed it
    loads = room_for_one.metric("inflight_model_load_seconds_count")
    assert 2 <= loads <= 8, "switches are few"
    assert room_for_one.metric("inflight_model_wait_seconds_count") > 0


def test_bodies_say_which_model_they_mean(room_for_one: Server) -> None:
    def error(response: httpx.Response) -> tuple[int, str]:
        return response.status_code, response.json()["error"]["message"]

    post = room_for_one.post
    assert error(post("/v1/completions", {"prompt": "x"})) == (
        400,
        "The body names no model, and this server has several: a, b.",
    )
    assert error(ask(room_for_one, "c")) == (404, "The model 'c' does not exist; this server has a, b.")
    status, message = error(post("/v1/completions", {"model": 5, "prompt": "x"}))
    assert status == 400 and message.startswith("model is 5")
    broken = httpx.post(room_for_one.url + "/v1/completions", content=b'{"model": "a"')
    assert error(broken)[0] == 400 and "not JSON" in error(broken)[1]
    long = post("/v1/completions", {"model": "c", "prompt": "word " * 20_000})
    assert error(long)[0] == 404
    assert error(post("/v1/embeddings", {"model": "a", "input": "x"}))[0] == 400
    assert post("/tokenize", {"model": "a", "prompt": "hi"}).json()["count"] >= 1
    rendered = post("/v1/chat/completions/render", {"model": "a", "messages": [{"role": "user", "content": "hi"}]})
    assert rendered.json()["model"] == "a" and len(rendered.json()["token_ids"]) > 1
    assert error(post("/v1/completions/render", {"prompt": "x"}))[0] == 400
    assert room_for_one.get("/tokenizer_info", params={"model": "a"}).json()["vocab_size"] > 1000
    assert room_for_one.get("/tokenizer_info").status_code == 400
    unloadable = post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "x"})
    assert unloadable.status_code == 403


def test_operators_load_and_unload(room_for_one: Server) -> None:
    server = room_for_one
    state = server.post("/v1/models/load", {"model": "a"}).json()
    assert state["success"] and state["state"] == "loaded" and state["calls"] == 0
    assert server.post("/models/unload", {"model": "first"}).json()["model"] == "a"
    assert server.settled(lambda: states(server)["a"] == "unloaded")
    assert server.post("/v1/models/load", {"model": "none"}).status_code == 404
    wrong = server.post("/v1/models/load", {"name": "a"})
    assert wrong.status_code == 400 and "'name'" in wrong.json()["error"]["message"]


def test_what_streams_ends_before_its_model_is_unloaded(room_for_one: Server) -> None:
    """However many tokens a frame brings."""
    tokens = 900  # enough for it to be in flight still when the other call comes
    body = {"model": "a", "prompt": "Once", "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    whole = room_for_one.post("/v1/completions", body).json()["choices"][0]["text"]
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with (
        httpx.Client(base_url=room_for_one.url, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=streamed) as stream,
    ):
        lines = stream.iter_lines()
        first = next(lines)
        assert room_for_one.post("/v1/models/unload", {"model": "a"}).json()["state"] == "draining"
        data = [line for line in (first, *lines) if line.startswith("data:")]
    assert data[-1] == "data: [DONE]"
    frames = [json.loads(line[5:]) for line in data[:-1]]
    choices = [choice for frame in frames for choice in frame["choices"]]
    assert "".join(choice["text"] for choice in choices) == whole
    assert choices[-1]["finish_reason"] == "length" and frames[-1]["usage"]["completion_tokens"] == tokens
    assert room_for_one.settled(lambda: states(room_for_one)["a"] == "unloaded")


@pytest.mark.wide
def test_lines_of_batch_jobs_ask_several(room_for_one: Server) -> None:
    client = room_for_one.client()
    lines = [
        {
            "custom_id": str(number),
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": "ab"[number % 2], "prompt": "Once", "max_tokens": 3},
        }
        for number in range(6)
    ]
    file = client.files.create(file="\n".join(map(json.dumps, lines)).encode(), purpose="batch")
    job = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    assert room_for_one.settled(lambda: client.batches.retrieve(job.id).status == "completed", 90)
    done = client.batches.retrieve(job.id)
    assert done.request_counts is not None and done.request_counts.completed == 6
    assert done.output_file_id is not None
    answers = [json.loads(line) for line in client.files.content(done.output_file_id).text.splitlines()]
    assert {one["response"]["body"]["model"] for one in answers} == {"a", "b"}


@pytest.mark.wide
def test_metrics_are_of_each_model_and_of_the_server(room_for_one: Server) -> None:
    ask(room_for_one, "b")
    page = room_for_one.get("/metrics").text
    names = re.findall(r"^# TYPE (\S+)", page, re.MULTILINE)
    assert len(names) == len(set(names))
    assert room_for_one.metric("inflight_model_loaded", model_name="b") == 1
    assert room_for_one.metric("inflight_engine_up", model_name="b") == 1
    assert room_for_one.metric("inflight_http_requests_total", endpoint="/v1/completions") > 0
    assert room_for_one.metric("inflight_models_memory_budget_bytes") == 1.5 * 2**30
    assert room_for_one.get("/health").status_code == 200


@pytest.mark.wide
def test_a_call_that_would_wait_too_long_is_refused_with_seconds(start: Callable[..., Server], tmp_path: Path) -> None:
    text = f"memory = 1.5\nmax-wait = 1\n[models.a]\npin = true\n{SIZE}{SMALL}[models.b]\nsize = 0.4\n{SMALL}"
    text += f"[models.c]\nsize = 0.4\n{SMALL}"
    server = start("--models", write(tmp_path / "models.toml", text))
    assert states(server)["a"] == "loaded"
    refused = ask(server, "b")
    if refused.status_code == 503:  # a first load is thought to take longer
        assert int(refused.headers["retry-after"]) >= 1 and "try again" in refused.json()["error"]["message"]
    assert server.settled(lambda: server.post("/v1/models/load", {"model": "b"}).status_code == 200, 60)
    begun = threading.Event()

    def hold() -> None:
        body = {"model": "b", "prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True, "n": 4}
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as stream:
            for _ in stream.iter_lines():
                begun.set()

    thread = threading.Thread(target=hold)
    thread.start()
    assert begun.wait(30)
    refused = ask(server, "c")
    assert refused.status_code == 503, refused.text
    error = refused.json()["error"]
    assert error["code"] == "model_loading" and "'c'" in error["message"] and "max-wait" in error["message"]
    assert float(refused.headers["retry-after"]) >= 1
    assert server.metric("inflight_model_waits_refused_total", model_name="c") == 1
    thread.join(60)
    assert server.settled(lambda: states(server)["c"] == "loaded", 60), "it is loaded though no call waits"
    pinned = server.post("/v1/models/unload", {"model": "a"})
    assert pinned.status_code == 409 and "pinned" in pinned.json()["error"]["message"]


def test_a_killed_api_process_costs_its_own_calls_and_gives_its_models_back(room_for_one: Server) -> None:
    server = room_for_one
    streams: dict[int, list[Asking]] = {}
    while len(streams) < 2:
        one = Asking(server, body={**ENDLESS, "model": "a"})
        streams.setdefault(owner(server, one.client), []).append(one)
    (kept, whole), (killed, broken) = streams.items()  # the last one, which has just begun, is the second's first
    os.kill(killed, signal.SIGKILL)
    assert len(broken) == 1 and broken[0].ended() is not None and broken[0].fault is not None
    for one in whole:
        assert one.ended()[-1] == "data: [DONE]" and one.fault is None
    assert server.settled(lambda: len(api_processes(server)) == 2 and kept in api_processes(server))
    clients = spread(server)
    for client in clients:
        assert client.post("/v1/completions", json={"model": "a", "prompt": "x", "max_tokens": 2}).status_code == 200
    residency = server.get("/v1/models/a").json()["residency"]
    assert (residency["calls"], residency["waiting"]) == (0, 0)
    assert server.post("/v1/models/unload", {"model": "a"}).json()["state"] == "unloading"
    for client in clients:
        assert client.post("/v1/completions", json={"model": "b", "prompt": "x", "max_tokens": 2}).status_code == 200


@pytest.mark.wide
def test_a_model_that_breaks_down_is_loaded_anew(start: Callable[..., Server], tmp_path: Path) -> None:
    models = write(tmp_path / "models.toml", f"memory = 4\n[models.a]\n{SMALL}[models.b]\n{SMALL}")
    server = start("--models", models, "--api-processes", "2")
    assert ask(server, "a").status_code == 200 and ask(server, "b").status_code == 200
    [of_a, *_] = workers(server)
    time.sleep(10)  # it has lived for a while; one that dies at once is not loaded at once
    asking = Asking(server, body={**ENDLESS, "model": "a"})
    os.kill(of_a, signal.SIGKILL)
    *_, error, done = asking.ended()
    assert done == "data: [DONE]" and "The model 'a' has crashed" in json.loads(error[6:])["error"]["message"]
    assert server.settled(lambda: states(server)["a"] == "unloaded")
    assert states(server)["b"] == "loaded" and ask(server, "b").status_code == 200
    assert ask(server, "a").status_code == 200
    assert "has crashed" in "".join(server.log)


@pytest.mark.wide
def test_only_operators_load_and_unload_with_keys(start: Callable[..., Server], tmp_path: Path) -> None:
    keys = write(tmp_path / "keys.toml", '[us]\nkey = "sk-us"\noperator = true\n[them]\nkey = "sk-them"\n')
    models = write(tmp_path / "models.toml", f"memory = 2\n[models.a]\n{SMALL}")
    server = start("--models", models, "--api-keys-file", keys)
    for key, status in (("sk-us", 200), ("sk-them", 403)):
        headers = {"Authorization": f"Bearer {key}"}
        assert server.post("/v1/models/load", {"model": "a"}, headers=headers).status_code == status


@pytest.mark.wide
def test_calls_that_wait_count_among_their_tenants(start: Callable[..., Server], tmp_path: Path) -> None:
    keys = write(tmp_path / "keys.toml", '[us]\nkey = "sk-us"\nmax_concurrent = 2\n')
    models = write(tmp_path / "models.toml", f"memory = 1.5\n[models.a]\n{SIZE}{SMALL}[models.b]\n{SIZE}{SMALL}")
    server = start("--models", models, "--api-keys-file", keys)
    headers = {"Authorization": "Bearer sk-us"}
    with ThreadPoolExecutor(6) as threads:
        asked = [threads.submit(ask, server, "b", 2, _headers=headers) for _ in range(6)]
        statuses = sorted(one.result().status_code for one in asked)
    assert statuses[:2] == [200, 200] and statuses[-1] == 429


@pytest.mark.wide
def test_a_missing_model_is_an_error_at_the_start(start: Callable[..., Server], tmp_path: Path) -> None:
    models = write(tmp_path / "models.toml", f'memory = 2\n[models.a]\nmodel = "{tmp_path}/nothing"\n')
    server = start("--models", models, ready=False)
    assert server.process.wait(60) == 1
    log = "".join(server.log)
    assert "[models.a]" in log and "nothing" in log and "Traceback" not in log


@pytest.mark.wide
def test_calls_that_wait_are_refused_when_the_server_ends(room_for_one: Server, tmp_path: Path) -> None:
    models = write(tmp_path / "models.toml", f"memory = 1.5\n[models.a]\n{SIZE}{SMALL}[models.b]\n{SIZE}{SMALL}")
    server = Server("--models", models, "--drain-timeout", "20").ready()
    assert ask(server, "a").status_code == 200
    with ThreadPoolExecutor(2) as threads:
        long = threads.submit(ask, server, "a", 900, ignore_eos=True)
        time.sleep(0.5)
        waiting = threads.submit(ask, server, "b")
        time.sleep(0.3)
        assert server.stop() == 0
        assert waiting.result().status_code in (200, 503)
        assert long.result().status_code == 200
    assert not workers(server) and "Traceback" not in "".join(server.log)


@pytest.mark.wide
def test_the_server_ends_though_calls_do_not(tmp_path: Path) -> None:
    """And a pinned model is not loaded again because its process ends."""
    models = write(tmp_path / "models.toml", f"memory = 2\n[models.a]\npin = true\n{SMALL}[models.b]\n{SMALL}")
    server = Server("--models", models, "--drain-timeout", "0.5").ready()
    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(ask, server, name, 900, n=8, ignore_eos=True) for name in "aab"]
        assert server.settled(lambda: set(states(server).values()) == {"loaded"}, 60)
        time.sleep(0.5)
        assert server.stop() == 0
        assert {one.result().status_code for one in asked} <= {200, 503}
    log = "".join(server.log)
    assert "has crashed" not in log and "Traceback" not in log and log.count("'a' is being loaded") == 1
    assert not workers(server)
