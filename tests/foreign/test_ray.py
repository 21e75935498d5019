"""`inflight serve --replicas` on a Ray of this machine: the tokens of one engine, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from server.conftest import Server

from .environments import Environment
from .ray_replicas import READY_SECONDS, checkout_python, children

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(900)]
CLIENT = "ray"
SERVICE = Path(__file__).parents[2] / "deploy/ray/service.yaml"


@pytest.fixture(scope="module")
def python(environment: Environment) -> str:
    return checkout_python(environment)


@pytest.fixture(scope="module")
def replicated(python: str) -> Iterator[Server]:
    arguments = ("--replicas", "2", "--api-processes", "2", "--max-num-seqs", "8")
    running = Server(*arguments, python=python).ready(READY_SECONDS)
    yield running
    assert running.stop() == 0, "".join(running.log)


@pytest.fixture(scope="module")
def single() -> Iterator[Server]:
    running = Server("--max-num-seqs", "8").ready()
    yield running
    assert running.stop() == 0


def body(number: int, **more: Any) -> dict[str, Any]:
    prompt = f"Request {number}. Once upon a time there was a batch of {number + 2} rows"
    return {"prompt": prompt, "max_tokens": 60, "ignore_eos": True, "temperature": 0.8, "seed": number, **more}


def answer(server: Server, number: int) -> dict[str, Any]:
    """Text, log-probabilities and usage."""
    got = httpx.post(f"{server.url}/v1/completions", json=body(number, logprobs=2), timeout=120)
    assert got.status_code == 200, got.text
    found = got.json()
    return {"choices": found["choices"], "usage": {**found["usage"], "prompt_tokens_details": None}}


def replicas_up(server: Server) -> list[str]:
    page = server.get("/metrics").text
    return [line.split('"')[1] for line in page.splitlines() if line.startswith("inflight_engine_up{")]


def test_answers_are_those_of_one_engine(replicated: Server, single: Server) -> None:
    with ThreadPoolExecutor(8) as pool:
        there = list(pool.map(lambda number: answer(replicated, number), range(16)))
        here = list(pool.map(lambda number: answer(single, number), range(16)))
    assert there == here
    page = replicated.get("/metrics").text.splitlines()
    finished = [line for line in page if line.startswith("inflight_requests_finished_total{") and line[-4:] != " 0.0"]
    assert len({line.partition('replica="')[2][:8] for line in finished}) == 2, "both had work"


def test_each_replica_is_seen_at_work(replicated: Server) -> None:
    """On the live page: greeted by its name, with what its batch did and who waits there."""
    greeted: dict[str, float] = {}
    works: dict[str, set[int]] = {}
    members: set[str] = set()
    with ThreadPoolExecutor(8) as pool, httpx.stream("GET", f"{replicated.url}/live/events", timeout=30) as feed:
        end = time.monotonic() + 60
        for line in feed.iter_lines():
            if not line.startswith("data: "):
                continue
            message = json.loads(line[6:])
            if message["type"] == "hello" and not message.get("engine"):
                asked = [pool.submit(answer, replicated, number) for number in range(100, 140)]
            elif message["type"] == "hello":
                greeted[message["engine"]] = message["clock"]
            elif name := message.get("engine"):
                works.setdefault(name, set()).update(run[2] for run in message.get("runs", []))
                assert name in greeted and message["lanes"][0]["name"] == "interactive"
            members.update(one["name"] for one in message.get("members", []))
            if time.monotonic() > end or (len(members) == 2 and sum({0, 1} <= one for one in works.values()) == 2):
                break
        for one in asked:
            one.result()
    assert set(greeted) == set(works) == members and len(members) == 2
    assert all({0, 1} <= one for one in works.values()), "prompts and next tokens of both"


def test_bad_requests_get_the_errors_of_one_engine(replicated: Server, single: Server) -> None:
    for wrong in (body(0, n=10**6), body(0, temperature=-1), {"prompt": "x" * 20_000}, {"model": "no"}):
        answers = [httpx.post(f"{one.url}/v1/completions", json=wrong, timeout=60) for one in (replicated, single)]
        assert answers[0].status_code == answers[1].status_code >= 400
        assert answers[0].json()["error"]["message"] == answers[1].json()["error"]["message"]


def test_a_killed_replica_takes_what_it_had_begun_and_nothing_else(replicated: Server, single: Server) -> None:
    assert len(replicas_up(replicated)) == 2
    with ThreadPoolExecutor(24) as pool:
        streams = [pool.submit(_streamed, replicated, number) for number in range(8)]
        time.sleep(1.5)
        os.kill(_replica_pids(replicated.process.pid)[0], signal.SIGKILL)
        later = [pool.submit(answer, replicated, number) for number in range(8, 16)]
        ended = [one.result() for one in streams]
        assert [one.result() for one in later] == [answer(single, number) for number in range(8, 16)]
    lost = [error for _, error in ended if error is not None]
    assert all("A replica was lost while it answered" in error for error in lost)
    whole = [number for number, (_, error) in enumerate(ended) if error is None]
    for number in whole:
        assert ended[number][0] == _streamed(single, number)[0]
    _until(lambda: len(replicas_up(replicated)) == 2, 120, "the lost one was not replaced")
    assert replicated.get("/health").status_code == 200


def test_long_queues_make_a_replica_more_and_short_ones_take_it_away(python: str) -> None:
    """No answer breaks off meanwhile: a replica that is removed is drained."""
    server = Server("--replicas", "1", "--max-replicas", "2", "--max-num-seqs", "2", "--threads", "1", python=python)
    server.ready(READY_SECONDS)
    asking, ended = threading.Event(), threading.Event()
    with ThreadPoolExecutor(24) as pool:
        few = [pool.submit(_stream_until, server, ended, number) for number in range(2)]
        many = [pool.submit(_stream_until, server, asking, number) for number in range(2, 24)]
        try:
            _until(lambda: len(replicas_up(server)) == 2, 150, "no replica was added under load")
            asking.set()
            _until(lambda: len(replicas_up(server)) == 1, 150, "the one that is not needed was not removed")
        finally:
            asking.set()
            ended.set()
        errors = [error for one in (*few, *many) for error in one.result()]
    assert not errors
    assert server.stop() == 0, "".join(server.log)


def _stream_until(server: Server, end: threading.Event, number: int) -> list[str]:
    """One after the other; what broke some of them off."""
    ended = []
    while not end.is_set():
        ended.append(_streamed(server, number)[1])
    return [error for error in ended if error is not None]


def _until(is_so: Callable[[], bool], seconds: float, otherwise: str) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, otherwise
        time.sleep(1)


def test_settings_that_cannot_be_served_so_are_refused(python: str, single: Server, tmp_path: Path) -> None:
    unused, other = f"127.0.0.1:{_free_port()}", single.url.removeprefix("http://")
    for arguments, said in (
        (("--replicas", "0"), "--replicas is 0; give a number from 1"),
        (("--replicas", "2", "--max-replicas", "1"), "--max-replicas is 1"),
        (("--router", "round-robin"), "--router has no effect without --replicas"),
        (("--replicas", "2", "--router", "sometimes"), "known are round-robin"),
        (("--replicas", "2", "--record", str(tmp_path / "r")), "--record is for one engine"),
        (("--replicas", "1", "--model", str(tmp_path / "nowhere")), "nowhere"),
        (("--replicas", "1", "--ray-address", "ray://there:10001"), "give HOST:PORT of a head"),
        (("--replicas", "1", "--ray-address", unused), f"{unused} cannot be reached"),
        (("--replicas", "1", "--ray-address", other), f"{other} is not a Ray head"),
    ):
        command = [python, "-m", "inflight.cli", "serve", "--port", "0", *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert ended.returncode in (1, 2) and said in ended.stderr and "Traceback" not in ended.stderr, ended.stderr


def _streamed(server: Server, number: int) -> tuple[str, str | None]:
    """The text, and what broke it off."""
    text, asked = "", body(number, max_tokens=400, stream=True)
    with server.client(timeout=120) as client:
        try:
            for chunk in client.completions.create(model="built-in", extra_body={"ignore_eos": True}, **_plain(asked)):
                text += chunk.choices[0].text if chunk.choices else ""
        except Exception as error:
            return text, str(error)
    return text, None


def _plain(asked: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if name != "ignore_eos"}


def _replica_pids(server: int) -> list[int]:
    """Processes of replicas, which Ray names so."""
    return [pid for pid, command in children(server) if "ServeReplica" in command]


def test_options_about_names_paths_and_templates_reach_the_replicas(python: str) -> None:
    asked = ("--root-path", "/llm", "--served-model-name", "a", "--served-model-name", "b")
    asked += ("--override-generation-config", '{"temperature": 0}', "--chat-template", "{{ messages[0].content }}")
    running = Server("--replicas", "1", *asked, python=python).ready(READY_SECONDS)
    assert running.url.endswith("/llm")
    texts = [
        running.post("/v1/completions", {"model": name, "prompt": "A block is"}).json()["choices"][0]["text"]
        for name in ("a", "b", "a")
    ]
    assert len(set(texts)) == 1, "the temperature is 0"
    said = {"messages": [{"role": "user", "content": "Hi"}]}
    assert running.post("/apply-template", said).json()["prompt"] == "Hi"
    assert httpx.get(running.url.removesuffix("/llm") + "/v1/models", timeout=30).status_code == 200
    assert running.stop() == 0, "".join(running.log)
    of_several = subprocess.run(
        [python, "-m", "inflight.cli", "serve", "--models", "local", "--replicas", "2"], capture_output=True, text=True
    )
    assert of_several.returncode == 2 and "--replicas does not go with --models" in of_several.stderr


def test_the_same_is_an_application_of_rays(python: str, single: Server, tmp_path: Path) -> None:
    """Run the configuration of deploy/ray, with a port and sizes for this machine."""
    config = yaml.safe_load(yaml.safe_load(SERVICE.read_text())["spec"]["serveConfigV2"])
    port = _free_port()
    config["http_options"] = {"host": "127.0.0.1", "port": port}
    config["applications"][0]["args"] |= {"threads": "1", "max-num-seqs": "8"}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    log = (tmp_path / "log").open("w")
    command = [str(Path(python).parent / "serve"), "run", str(file)]
    running = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + READY_SECONDS
        while not _is_ready(url):
            assert running.poll() is None and time.monotonic() < deadline, Path(log.name).read_text()
            time.sleep(1)
        for number in range(3):
            got = httpx.post(f"{url}/v1/completions", json=body(number, logprobs=2), timeout=120).json()
            assert got["choices"] == answer(single, number)["choices"]
        wrong = httpx.post(f"{url}/v1/completions", json=body(0, temperature=-1), timeout=60)
        assert wrong.status_code == 400 and "temperature" in wrong.json()["error"]["message"]
    finally:
        os.killpg(running.pid, signal.SIGTERM)
        running.wait(120)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
