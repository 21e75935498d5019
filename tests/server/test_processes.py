"""HTTP in processes of its own: what clients and operators see of it is what they see of one process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from breadth import first_of

from inflight.limited_process import receive
from inflight.server.call_counts import SharedCallCounts, shared_memory
from inflight.server.errors import ApiError
from inflight.server.processes.control import Control
from inflight.server.processes.counts import Answered, NotAsked
from inflight.server.processes.folder import private_folder
from inflight.server.processes.messages import (
    AskPage,
    Loading,
    Model,
    Page,
    ServerSetup,
    Setup,
    Signal,
    Up,
    decode_from_child,
    decode_to_child,
    encode,
)
from inflight.server.service import Service
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenant
from inflight.text import TextFiles

from .conftest import Server
from .conftest import children as children_of

ENDLESS = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True, "n": 8}


def children(server: Server) -> list[int]:
    """The API processes."""
    return children_of(server, "inflight.server.processes.child")


def engines(server: Server) -> list[int]:
    """The engine's process, if it lives."""
    return children_of(server, "inflight.launch.engine_process")


def owner(server: Server, client: httpx.Client) -> int:
    """The process that has this client's connection."""
    [connection] = client._transport._pool.connections  # type: ignore[attr-defined]
    port = connection._connection._network_stream.get_extra_info("client_addr")[1]
    address = f"0100007F:{int(server.url.rpartition(':')[2]):04X} 0100007F:{port:04X}"
    inodes: set[str] = set()
    while not inodes:  # the system's list shows a line twice, or not at all, while others open and close connections
        inodes = {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines() if address in line}
    [inode] = inodes
    for child in children(server):
        for descriptor in Path(f"/proc/{child}/fd").iterdir():
            if os.readlink(descriptor) == f"socket:[{inode}]":
                return child
    raise AssertionError("no process has it")


class Asking:
    """A stream that goes on, in a thread; what it said when it ended."""

    def __init__(self, server: Server, key: str = "none", body: dict[str, object] = ENDLESS):
        self.lines: list[str] = []
        self.fault: Exception | None = None
        self.begun = threading.Event()
        self.client = httpx.Client(headers={"Authorization": f"Bearer {key}"}, timeout=60)
        self._url, self._body = server.url, body
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        assert self.begun.wait(30)

    def _read(self) -> None:
        try:
            with self.client.stream("POST", self._url + "/v1/completions", json=self._body) as response:
                self.status = response.status_code
                for line in response.iter_lines():
                    self.lines += [line] if line else []
                    self.begun.set()
        except httpx.TransportError as fault:
            self.fault = fault
        self.begun.set()

    def ended(self) -> list[str]:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.lines


@pytest.fixture(scope="module")
def pair() -> Iterator[Server]:
    running = Server("--api-processes", "2").ready()
    yield running
    assert running.stop() == 0, "".join(running.log)
    assert "Traceback" not in "".join(running.log)


def spread(server: Server, count: int = 2) -> list[httpx.Client]:
    """Connections, one to each process."""
    found: dict[int, httpx.Client] = {}
    for _ in range(200):
        client = httpx.Client(base_url=server.url, timeout=60)
        client.get("/health")
        if found.setdefault(owner(server, client), client) is not client:
            client.close()
        if len(found) == count:
            return list(found.values())
    raise AssertionError("one process takes all connections")


def test_every_route_answers_in_every_process(pair: Server) -> None:
    for client in spread(pair):
        assert client.get("/health").json()["status"] == "ready"
        assert client.get("/version").json()["version"]
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["built-in"]
        tokens = client.post("/tokenize", json={"prompt": "Once upon a time"}).json()["tokens"]
        assert client.post("/detokenize", json={"tokens": tokens}).json()["prompt"] == "Once upon a time"
        rendered = client.post("/v1/completions/render", json={"prompt": "Once upon a time"}).json()
        assert rendered[0]["token_ids"] == tokens
        body = {"prompt": "Once", "max_tokens": 5, "temperature": 0, "logprobs": 3}
        answer = client.post("/v1/completions", json=body).json()
        assert answer["usage"]["completion_tokens"] == 5 and len(answer["choices"][0]["logprobs"]["tokens"]) == 5
        chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5, "stream": True}
        lines = [line for line in client.post("/v1/chat/completions", json=chat).text.splitlines() if line]
        assert lines[-1] == "data: [DONE]" and len(lines) > 1
        assert client.get("/v1/files").status_code == 404
        refused = client.post("/v1/completions", json={"prompt": [1] * 2000, "max_tokens": 5})
        assert refused.status_code == 400 and "context length" in refused.json()["error"]["message"]
        client.close()


def test_answers_do_not_depend_on_the_process(pair: Server) -> None:
    body = {"prompt": "Once", "max_tokens": 20, "seed": 7, "temperature": 1}
    texts = {client.post("/v1/completions", json=body).json()["choices"][0]["text"] for client in spread(pair)}
    assert len(texts) == 1
    draws = [client.post("/v1/completions", json={**body, "seed": None, "max_tokens": 40}) for client in spread(pair)]
    assert len({one.json()["choices"][0]["text"] for one in draws}) == 2, "each draws seeds of its own"


def test_a_client_that_goes_away_frees_the_engine(pair: Server) -> None:
    for client in spread(pair):
        with client.stream("POST", "/v1/completions", json=ENDLESS) as response:
            lines = response.iter_lines()  # kept: the stream is closed with it
            next(lines)
            assert pair.metric("inflight_sequences_running") > 0
        assert pair.settled(lambda: pair.metric("inflight_sequences_running") == 0)
        client.close()
    assert pair.settled(lambda: pair.get("/health").json()["detail"] == "0 calls in flight")


def test_metrics_are_of_all_processes(pair: Server) -> None:
    labels = {"endpoint": "/v1/completions", "status": "200"}
    before = pair.metric("inflight_http_requests_total", **labels)
    for client in spread(pair):
        client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
        client.close()
    assert pair.settled(lambda: pair.metric("inflight_http_requests_total", **labels) == before + 2)


def test_a_killed_process_costs_its_own_connections_only(start: Callable[..., Server]) -> None:
    server = start("--api-processes", "2", "--max-num-seqs", "64")
    streams: dict[int, list[Asking]] = {}
    while len(streams) < 2:
        one = Asking(server)
        streams.setdefault(owner(server, one.client), []).append(one)
    (kept, whole), (killed, broken) = streams.items()  # the last one, which has just begun, is the second's first
    requests = server.metric("inflight_http_requests_total")
    os.kill(killed, signal.SIGKILL)
    assert len(broken) == 1 and broken[0].ended() is not None and broken[0].fault is not None
    for one in whole:
        assert one.ended()[-1] == "data: [DONE]" and one.fault is None
    assert server.settled(lambda: len(children(server)) == 2 and kept in children(server))
    clients = spread(server)
    for client in clients:
        assert client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200
    for client in clients:  # a call is counted until its process has seen the end of its answer, after its client has
        assert server.settled(lambda client=client: client.get("/health").json()["detail"] == "0 calls in flight")
    assert server.settled(lambda: server.metric("inflight_sequences_running") == 0)
    assert server.metric("inflight_http_requests_total") > requests, "counts outlive the process"
    log = "".join(server.log)
    assert "was killed by signal 9; its calls in flight" in log and " is restarted." in log
    assert server.stop() == 0 and "Traceback" not in log


@pytest.mark.wide
def test_a_signal_while_a_killed_process_is_not_back_yet_ends_all(start: Callable[..., Server]) -> None:
    """A process that has ended gets no message, and all others do."""
    server = start("--api-processes", "2")
    os.kill(children(server)[0], signal.SIGKILL)
    assert server.settled(lambda: "is restarted" in "".join(server.log))
    assert server.stop() == 0, "".join(server.log)
    assert "did not exit in time" not in "".join(server.log) and "Traceback" not in "".join(server.log)


@pytest.mark.wide
@pytest.mark.parametrize("seconds", [0.3, 0.9])
def test_an_engine_that_dies_while_a_process_loads_leaves_none(start: Callable[..., Server], seconds: float) -> None:
    server = start("--api-processes", "2")
    before = set(children(server))
    os.kill(min(before), signal.SIGKILL)
    assert server.settled(lambda: len(set(children(server)) - before) == 1)
    alive = children(server)
    time.sleep(seconds)
    server.process.kill()
    assert server.settled(lambda: not any(Path(f"/proc/{one}").exists() for one in alive))


def test_when_the_first_process_dies_all_end(start: Callable[..., Server], tmp_path: Path) -> None:
    server = start("--api-processes", "2", env={"TMPDIR": str(tmp_path)})
    [folder] = tmp_path.glob("inflight-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    before = [*children(server), *engines(server)]
    with ThreadPoolExecutor(4) as pool:  # at once, so that none ends before the others begin
        asking = list(pool.map(lambda _: Asking(server), range(4)))
    server.process.kill()
    for one in asking:
        *_, error, done = one.ended()
        message = json.loads(error[6:])["error"]["message"]  # by whose end an API process has noticed first
        assert done == "data: [DONE]" and (
            "first process is gone" in message or message.startswith("The engine was closed")
        )
    assert server.process.wait(30) != 0
    assert server.settled(lambda: not any(Path(f"/proc/{one}").exists() for one in before))
    assert not folder.exists()


def test_an_engine_that_is_killed_is_started_again(start: Callable[..., Server]) -> None:
    server = start("--api-processes", "2")
    with ThreadPoolExecutor(4) as pool:
        asking = list(pool.map(lambda _: Asking(server), range(4)))
    before = children(server)
    [engine] = engines(server)
    os.kill(engine, signal.SIGKILL)
    for one in asking:
        *_, error, done = one.ended()
        reason = json.loads(error[6:])["error"]
        assert done == "data: [DONE]" and reason["code"] == "engine_stopped" and "SIGKILL" in reason["message"]
    assert server.settled(lambda: engines(server) not in ([], [engine]))  # by then all know that the first is gone
    assert server.settled(lambda: server.get("/health").status_code == 200)
    assert children(server) == before
    for client in spread(server):
        assert client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200
    assert server.settled(lambda: server.get("/health").json()["detail"] == "0 calls in flight")
    assert server.stop() == 0
    log = "".join(server.log)
    assert "was killed by SIGKILL" in log and "The engine is restarted." in log and "Traceback" not in log


def test_without_an_engine_calls_are_refused_until_it_is_there(start: Callable[..., Server]) -> None:
    server = start()
    ready = {"status": "ready", "detail": "0 calls in flight", "calls": 0}
    assert server.get("/readyz").json() == server.get("/health").json() == ready
    [engine] = engines(server)
    os.kill(engine, signal.SIGKILL)
    assert server.settled(lambda: server.get("/readyz").status_code == 503)
    alive = server.get("/livez")
    assert alive.status_code == 200 and alive.json() == {"status": "live"}
    answer = server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
    if answer.status_code != 200:  # it may be back already
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "loading"
    assert server.settled(lambda: server.get("/health").status_code == 200)
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 2}).status_code == 200


@pytest.mark.wide
def test_an_engine_that_breaks_down_is_started_again(start: Callable[..., Server], tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from inflight.core.scheduling.scheduler import Scheduler\n"
        "class Break(BaseException): ...\n"
        "commits = iter(range(20))\n"
        "plain = Scheduler.commit\n"
        "def commit(*arguments):\n"
        "    if next(commits, None) is None: raise Break('on purpose')\n"
        "    return plain(*arguments)\n"
        "Scheduler.commit = commit\n",
        encoding="utf-8",
    )
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'inflight.launch.engine_process' in sys.orig_argv: import broken\n", encoding="utf-8"
    )
    server = start("--api-processes", "2", env={"PYTHONPATH": str(tmp_path)})
    for _ in range(2):
        before = engines(server)
        *_, last = [line for line in Asking(server).ended() if line != "data: [DONE]"]
        # In the stream, or instead of one where it had not begun.
        assert "on purpose" in json.loads(last.removeprefix("data: "))["error"]["message"]
        assert server.settled(lambda before=before: engines(server) not in ([], before))  # type: ignore[misc]
        assert server.settled(lambda: server.get("/health").status_code == 200)
    assert any("The engine stopped by an error" in line for line in server.log)
    assert server.stop() == 0


@pytest.mark.wide
def test_an_engine_that_ends_again_and_again_ends_the_server(start: Callable[..., Server], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, threading\n"
        "if 'inflight.launch.engine_process' in sys.orig_argv: threading.Timer(2.5, os._exit, (9,)).start()\n",
        encoding="utf-8",
    )
    server = start(ready=False, env={"PYTHONPATH": str(tmp_path)})
    assert server.process.wait(90) == 1
    assert any("The engine ended 5 times before it was ready" in line for line in server.log) or any(
        "ended with exit code 9" in line for line in server.log
    ), "on a busy machine not even the first one is ready in time"


def test_an_api_process_that_is_alone_answers_while_the_engine_loads(start: Callable[..., Server]) -> None:
    server = start()
    [engine], [child] = engines(server), children(server)
    os.kill(engine, signal.SIGKILL)
    assert server.settled(lambda: engines(server) not in ([], [engine]))
    [engine] = engines(server)
    os.kill(engine, signal.SIGSTOP)  # as one whose model is large
    os.kill(child, signal.SIGKILL)
    assert server.settled(lambda: children(server) not in ([], [child]))

    def is_live() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return server.get("/livez").status_code == 200 and server.get("/readyz").status_code == 503
        return False

    assert server.settled(is_live)
    server.process.send_signal(signal.SIGTERM)
    assert server.settled(lambda: not children(server))
    os.kill(engine, signal.SIGCONT)
    assert server.process.wait(30) == 0


def test_an_api_process_that_is_not_alone_and_waits_for_the_engine_obeys_signals(start: Callable[..., Server]) -> None:
    server = start("--api-processes", "2", "--drain-timeout", "600")
    [engine], [first, _] = engines(server), children(server)
    os.kill(engine, signal.SIGSTOP)
    os.kill(first, signal.SIGKILL)
    assert server.settled(lambda: len(children(server)) == 2 and first not in children(server))
    time.sleep(0.5)  # it connects to nothing; whether it is so far already does not matter
    server.process.send_signal(signal.SIGTERM)
    assert server.settled(lambda: not children(server))
    os.kill(engine, signal.SIGCONT)
    assert server.process.wait(30) == 0


@pytest.mark.wide
def test_drains_on_sigterm(start: Callable[..., Server]) -> None:
    server = start("--api-processes", "2", "--drain-timeout", "30")
    asking = [Asking(server) for _ in range(4)]
    server.process.send_signal(signal.SIGTERM)
    for one in asking:
        assert one.ended()[-1] == "data: [DONE]" and "error" not in one.lines[-2]
    assert server.process.wait(30) == 0
    log = "".join(server.log)
    assert log.count("SIGTERM: taking no new work; 4 calls are in flight.") == 1 and "Traceback" not in log


@pytest.mark.wide
def test_a_second_signal_ends_at_once(start: Callable[..., Server]) -> None:
    server = start("--api-processes", "2", "--drain-timeout", "600")
    asking = [Asking(server, body={**ENDLESS, "n": 64}) for _ in range(2)]
    server.process.send_signal(signal.SIGINT)
    assert server.settled(lambda: any("taking no new work" in line for line in server.log))
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(30) == 0
    for one in asking:
        assert one.ended()[-1] == "data: [DONE]", "done, or ended with the reason"


@pytest.mark.wide
def test_a_signal_while_it_loads_stops_it(start: Callable[..., Server], tmp_path: Path) -> None:
    server = start("--api-processes", "2", ready=False)
    assert server.settled(lambda: len(children(server)) == 2)
    time.sleep(0.2)
    assert server.stop() == 0
    assert "Traceback" not in "".join(server.log)


@pytest.mark.wide
def test_a_model_that_is_not_there_ends_with_a_sentence(tmp_path: Path) -> None:
    result = run("--api-processes", "2", "--port", "0", str(tmp_path / "nowhere"))
    assert result.returncode == 1 and "nowhere" in result.stderr and "Traceback" not in result.stderr


def test_limits_of_tenants_hold_over_all_processes(start: Callable[..., Server], keys_file: Path) -> None:
    server = start("--api-processes", "2", "--api-keys-file", str(keys_file))
    acme, umbrella = {"Authorization": "Bearer sk-acme"}, {"Authorization": "Bearer sk-umbrella"}
    body = {"prompt": "x", "max_tokens": 1}
    # A connection for each call, so that either process takes it.
    fresh = httpx.Client(base_url=server.url, timeout=60, limits=httpx.Limits(max_keepalive_connections=0))
    asked = fresh.build_request("POST", "/v1/completions", json={**ENDLESS, "n": 64}, headers=acme)
    asking = [fresh.send(asked, stream=True) for _ in range(2)]  # in flight until they are read
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: fresh.post("/v1/completions", json=body, headers=acme), range(16)))
    assert {one.status_code for one in answers} == {429}
    assert server.settled(lambda: server.metric("inflight_requests_refused_total", code="too_many_streams") == 16)
    # Of calls that are refused at the same time, each may count another.
    assert "calls of 'acme' are in flight, and its maximum is 2" in answers[0].json()["error"]["message"]
    assert server.post("/v1/completions", body, headers=umbrella).status_code == 200
    assert server.post("/v1/completions", body).status_code == 401
    for one in asking:
        one.close()
    assert server.settled(lambda: server.post("/v1/completions", body, headers=acme).status_code == 200)


def test_connections_are_shared_out(pair: Server) -> None:
    owners: set[int] = set()

    def has_both() -> bool:  # on a busy machine one of them may take many before the other is awake
        with httpx.Client(base_url=pair.url, timeout=30) as client:
            client.get("/version")
            owners.add(owner(pair, client))
        return len(owners) == 2

    assert pair.settled(has_both), "each takes some"


def test_a_port_in_use_is_an_error_at_once(pair: Server) -> None:
    """Also where its owner shares it among its processes."""
    result = run("--api-processes", "2", "--port", pair.url.rpartition(":")[2])
    assert result.returncode == 1 and "cannot be used" in result.stderr and "Traceback" not in result.stderr


def test_no_other_server_can_have_the_port(pair: Server) -> None:
    """Nor a second server's of the same user, whose processes would share it."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", int(pair.url.rpartition(":")[2])))


@pytest.mark.parametrize("count", first_of(["2", "1"]))
def test_who_waits_when_a_process_ends_is_served_by_another(start: Callable[..., Server], count: str) -> None:
    """By its successor, where there is none."""
    server = start("--api-processes", count)
    killed, *others = children(server)
    for one in (killed, *others):
        os.kill(one, signal.SIGSTOP)
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as waiting:
        waiting.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        os.kill(killed, signal.SIGKILL)
        for one in others:
            os.kill(one, signal.SIGCONT)
        waiting.settimeout(30)
        assert waiting.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.wide
def test_nothing_but_sockets_lies_in_folders(start: Callable[..., Server], tmp_path: Path) -> None:
    server = start("--api-processes", "2", env={"TMPDIR": str(tmp_path)})
    [folder] = tmp_path.glob("inflight-*")
    assert all(one.is_socket() for one in folder.iterdir())
    assert server.stop() == 0 and not folder.exists()


def test_folders_of_the_dead_are_removed_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead, other = tmp_path / "inflight-api-dead", tmp_path / "inflight-api-work"
    for folder in (dead, other):
        folder.mkdir()
    (other / "thesis.tex").write_text("mine")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(dead / "engine"))
    with private_folder() as living:
        assert not dead.exists() and (other / "thesis.tex").exists()
        with private_folder() as second:
            assert living.exists() and second != living
    assert set(tmp_path.iterdir()) == {other}


def test_a_process_that_does_not_read_stops_no_other() -> None:
    """And a message is one piece."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        control = Control(ours, decode_from_child)
        heard: list[Signal] = []
        listening = asyncio.ensure_future(control.listen(lambda message: None))
        control.send(Signal(0))
        assert decode_to_child(await asyncio.to_thread(receive, theirs)) == Signal(0)
        for number in range(100_000):
            control.send(Signal(number))

        def read() -> None:
            heard.extend(decode_to_child(receive(theirs)) for _ in range(100_000))  # type: ignore[misc]

        await asyncio.to_thread(read)
        assert heard == [Signal(number) for number in range(100_000)]
        theirs.close()
        await listening

    asyncio.run(main())


def test_a_folder_too_long_for_sockets_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    result = run("--api-processes", "1", "--port", "0", env={"TMPDIR": str(folder)})
    assert result.returncode == 1 and "set TMPDIR to a shorter one" in result.stderr
    assert "Traceback" not in result.stderr


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "inflight.cli", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **(env or {})})


@pytest.mark.wide
def test_settings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    for arguments, said in (
        (("--api-processes", "65"), "--api-processes is 65"),
        (("--api-processes", "2", "--port", "0", "--data-dir", str(tmp_path)), "give an empty folder"),
    ):
        result = run(*arguments)
        assert result.returncode in (1, 2) and said in result.stderr and "Traceback" not in result.stderr
        assert result.stderr.count(said) == 1


SETUP = Setup(
    server=ServerSetup(
        settings=ServerSettings(api_processes=2, ssl_certfile=Path("/c"), served_model_name=("a", "b")),
        version="1.0",
        log_format="json",
        log_level="info",
    ),
    keys=((b"\0\xff", Tenant(name="acme", weight=2.0, max_concurrent=3)),),
    tenants=("acme",),
    index=1,
    serial=7,
    early=True,
    listening=8,
    counts=9,
    folder=Path("/t"),
)


def test_messages_come_out_as_they_went_in() -> None:
    for message in (SETUP, Loading("x"), Model(TextFiles("/m")), Signal(15), Page(3, b"\xff", "text/plain")):
        assert decode_to_child(encode(message)) == message
    for message in (Up(3), Answered("/v1/completions", 200, 0.25), NotAsked("draining"), AskPage(9)):
        assert decode_from_child(encode(message)) == message


def test_calls_are_counted_over_processes() -> None:
    names, table = ("", "acme"), shared_memory()
    one, other, onlooker = (SharedCallCounts(table, names, 2, place) for place in (0, 1, None))
    for counts in (one, other, other):
        counts.enter("acme")
    other.enter("")
    assert [(counts.mine, counts.everywhere, counts.of("acme")) for counts in (one, other, onlooker)] == [
        (1, 4, 3),
        (3, 4, 3),
        (0, 4, 3),
    ]
    other.leave("acme")
    assert onlooker.clear(1) == 2 and (one.everywhere, one.of("acme"), one.of("")) == (1, 1, 0)


def test_all_processes_are_ready_at_once() -> None:
    table = shared_memory()
    model: Any = SimpleNamespace(stopped=None)
    services = [
        Service(ServerSettings(), lambda ended: None, SharedCallCounts(table, [""], 2, place)) for place in (0, 1)
    ]
    services[0].ready(model)
    assert [one.state for one in services] == ["loading", "loading"]
    with pytest.raises(ApiError) as refused:
        services[0].check()
    assert (refused.value.status, refused.value.code) == (503, "loading")
    services[1].ready(model)
    SharedCallCounts(table, [""], 2).set_all_ready()
    assert [one.state for one in services] == ["ready", "ready"]
    services[0].check()
