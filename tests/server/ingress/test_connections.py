"""Limits of connections: sizes, times and numbers, seen by those who break them and by those who do not."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from inflight.server.ingress import connections
from inflight.server.ingress.addresses import Networks
from inflight.server.ingress.connections import Connections

from ..conftest import Server
from .raw import GENERATE, Answer, Raw, head, request

COMPLETIONS = "/v1/completions"


ENDLESS = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}


def test_a_url_and_headers_are_bounded_while_they_come(server: Server) -> None:
    for sent, status, code in (
        (b"GET /" + b"a" * 9000, 414, "url_too_long"),
        (b"GET /" + b"a" * 20_000_000 + b" HTTP/1.1\r\n\r\n", 414, "url_too_long"),
        (head("GET", "/health", "X: " + "a" * 40_000), 431, "headers_too_large"),
        (head("GET", "/health", "X: " + "a" * 15_000_000), 431, "headers_too_large"),
        (b"GET /health HTTP/1.1\r\nX: " + b"a" * 100_000, 431, "headers_too_large"),
        (head("GET", "/health", *(f"X{number}: y" for number in range(200))), 431, "headers_too_large"),
        (b"no such thing as HTTP\r\n\r\n", 400, "bad_http"),
        (head("CONNECT", "example.com:443"), 405, "method_not_allowed"),
    ):
        with Raw(server) as raw:
            answer = raw.send(sent).answer()
        assert (answer.status, answer.error["code"]) == (status, code), sent[:60]
        assert answer.headers["connection"] == "close"
    with Raw(server) as raw:
        long = head("GET", "/health?" + "q" * 8000, "X: " + "a" * 30_000, "Connection: close")
        assert raw.send(long).answer().status == 200, "what is within the limits is served"


def test_trailers_and_signs_around_chunks_are_bounded_too(server: Server) -> None:
    begun = head("POST", COMPLETIONS, "Transfer-Encoding: chunked")
    for sent in (b"1\r\n{\r\n0\r\nX: " + b"a" * 1_000_000, b"1;" + b"x" * 1_000_000):
        with Raw(server) as raw:
            assert raw.send(begun + sent).answer().error["code"] == "headers_too_large"
    body = b'{"prompt": "Once", "max_tokens": 2}'
    small = b"".join(b"1\r\n%c\r\n" % sign for sign in body + b" " * 100_000)
    with Raw(server) as raw:
        assert raw.send(begun + small + b"0\r\nX: y\r\n\r\n").one().status == 200, "one byte a chunk is slow, not wrong"


def test_headers_must_come_in_time(start: Callable[..., Server]) -> None:
    server = start("--header-timeout", "0.5", "--http-keep-alive", "100")
    with Raw(server) as slow, Raw(server) as nothing, Raw(server) as second:
        slow.send(b"GET /health HTTP/1.1\r\nX: ")
        second.send(head("GET", "/health"))
        assert second.one().status == 200
        second.send(b"GET")
        for raw in (slow, second):
            answer = raw.answer()
            assert (answer.status, answer.error["code"]) == (408, "header_timeout")
        assert not nothing.is_closed, "who has not begun is idle, not slow"


def test_idle_connections_stay_open_as_long_as_is_set(start: Callable[..., Server], server: Server) -> None:
    impatient = start("--http-keep-alive", "0.3")
    with Raw(impatient) as fresh, Raw(impatient) as used:
        used.send(head("GET", "/health"))
        assert used.one().status == 200
        assert fresh.answer().status == 0 and used.answer().status == 0
    with Raw(server) as raw:
        for _ in range(2):
            assert raw.send(head("GET", "/health")).one().status == 200


def test_one_address_has_its_share_of_connections(start: Callable[..., Server]) -> None:
    server = start("--max-connections", "40", "--max-connections-per-address", "10", "--max-num-seqs", "64")
    at_work = [Raw(server).send(request(ENDLESS)) for _ in range(10)]
    assert [Answer(one.socket.recv(4096)).status for one in at_work] == [200] * 10
    with Raw(server) as more:
        answer = more.answer()
        assert (answer.status, answer.error["code"]) == (503, "too_many_connections")
    assert server.get("/health").status_code == 200, "another address is not concerned"
    assert not any(one.is_closed for one in at_work)
    idle = [Raw(server, "127.0.0.3") for _ in range(30)]
    assert server.settled(lambda: sum(one.is_closed for one in idle) == 20)

    def has_come() -> bool:
        with Raw(server, "127.0.0.3") as raw:
            return raw.send(head("GET", "/health", "Connection: close")).answer().status == 200

    assert server.settled(has_come), "its own idle ones make room, when they have not asked for a while"
    assert sum("Connections are refused" in line for line in server.log) == 1, "one line a minute"


def test_idle_and_slow_connections_make_room_for_new_ones(start: Callable[..., Server]) -> None:
    server = start("--max-connections", "20", "--max-connections-per-address", "10")
    idle = [Raw(server, "127.0.0.2") for _ in range(8)]
    slow: list[Raw] = []

    def pressed() -> bool:
        slow.append(Raw(server, f"127.0.0.{3 + len(slow) % 2}").send(b"GET"))
        return all(one.is_closed for one in idle)

    assert server.settled(pressed), "those who ask nothing go first"
    for _ in range(20):
        assert server.post(COMPLETIONS, GENERATE).status_code == 200
    assert sum(one.is_closed for one in slow) >= 1
    half = [
        Raw(server, f"127.0.0.{3 + number % 2}").send(head("POST", COMPLETIONS, length=9) + b"x")
        for number in range(20)
    ]
    for _ in range(5):
        assert server.get("/health").status_code == 200
    assert len(half) == 20


def test_an_upgrade_is_ignored_and_the_body_kept(server: Server) -> None:
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    with Raw(server) as raw:
        for _ in range(2):
            answer = raw.send(request(GENERATE, *upgrade)).one()
            assert answer.status == 200 and b"choices" in answer.body
        assert raw.send(head("GET", "/health", "Connection: Upgrade", "Upgrade: websocket")).one().status == 200
        slowly = request(GENERATE, *upgrade)
        raw.send(slowly[:-10])
        assert raw.send(slowly[-10:]).one().status == 200


def test_pipelined_requests_are_answered_in_order_and_bounded(server: Server) -> None:
    with Raw(server) as raw:
        raw.send(head("GET", "/health") + head("GET", "/version") + head("GET", "/nowhere", "Connection: close"))
        data = b""
        while piece := raw.socket.recv(65536):
            data += piece
    assert [part[:3] for part in data.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200", b"404"]
    with Raw(server) as raw:
        data = raw.send(head("GET", "/health") * 3000).answer()
    assert data.status == 200 and data.body.count(b"HTTP/1.1 200") < 12, "not thousands are kept"


def test_what_follows_a_request_harms_its_answer_not(server: Server) -> None:
    with Raw(server) as raw:
        answer = raw.send(request({**GENERATE, "max_tokens": 200, "ignore_eos": True}) + b"\0garbage\0").answer()
    assert answer.status == 200 and b"choices" in answer.body


def test_the_end_waits_for_no_idle_connection(start: Callable[..., Server]) -> None:
    server = start("--drain-timeout", "20")
    half = [Raw(server).send(head("POST", COMPLETIONS, length=100) + b"{") for _ in range(300)]
    idle = [Raw(server) for _ in range(50)]
    slow = [Raw(server).send(b"GET /") for _ in range(50)]
    assert server.get("/health").status_code == 200
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(15) == 0
    log = "".join(server.log)
    assert "Traceback" not in log and "Cancel" not in log and log.count("\n") < 60
    assert all(one.is_closed for one in (*half, *idle, *slow))


def test_the_connections_of_a_trusted_proxy_are_not_counted_by_address(start: Callable[..., Server]) -> None:
    server = start(
        "--max-connections-per-address", "2", "--trusted-proxies", "127.0.0.9/32", "--max-num-seqs", "64"
    )  # fmt: skip

    def ask(client: str) -> tuple[Raw, int]:
        raw = Raw(server, "127.0.0.9").send(request(ENDLESS, f"X-Forwarded-For: {client}"))
        return raw, Answer(raw.socket.recv(4096)).status

    opened = [ask(client) for client in ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.3")]
    assert [status for _, status in opened] == [200] * 5, "the proxy's own connections are not counted"
    for raw, _ in opened:
        raw.socket.close()
    assert server.settled(lambda: server.get("/health").json()["detail"].startswith("0 calls"))
    lies = [Raw(server, "127.0.0.8").send(request(ENDLESS, f"X-Forwarded-For: 10.0.1.{n}")) for n in range(2)]
    assert [Answer(raw.socket.recv(4096)).status for raw in lies] == [200, 200]
    third = Raw(server, "127.0.0.8").send(request(ENDLESS, "X-Forwarded-For: 10.0.1.3"))
    assert third.answer().status == 503, "who is no proxy is counted as what it is"


class Silent:
    """A connection whose client says nothing."""

    def __init__(self, host: str):
        self.host = self.key = host
        self.is_at_work = self.is_reading = self.closed = False
        self.transport = SimpleNamespace(abort=self._close)

    def _close(self) -> None:
        self.closed = True


def counting(limit: int, per_address: int) -> Any:
    return Connections(limit, per_address, Networks(()), 5)


def test_of_many_that_come_at_once_some_are_refused_and_none_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: now))
    every, members = counting(4, 3), [Silent(f"10.0.0.{number % 2}") for number in range(6)]
    refused = [every.admit(one) for one in members]
    assert [one is None for one in refused] == [True] * 4 + [False] * 2
    assert every.admit(Silent("10.0.0.9")) is not None and not any(one.closed for one in members)
    members[3].is_reading = True
    assert every.admit(Silent("10.0.0.9")) is None and members[3].closed, "half a request is no reason to wait"
    now += 2 * connections.NEW_SECONDS
    members[0].is_at_work = True
    every.use(members[1])
    assert every.admit(Silent("10.0.0.9")) is None
    assert [one.closed for one in members[:4]] == [False, False, True, True], "neither a busy nor the latest used one"


def test_an_address_closes_unused_connections_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: now))
    every, other, own = counting(10, 2), Silent("10.0.0.1"), [Silent("10.0.0.2") for _ in range(3)]
    assert all(every.admit(one) is None for one in (other, *own[:2]))
    now += 2 * connections.NEW_SECONDS
    assert every.admit(own[2]) is None and [one.closed for one in (other, *own)] == [False, True, False, False]
    for one in (other, *own):
        every.discard(one)
        every.discard(one)
    assert not every._used and not every._counts


def test_a_limit_that_no_server_can_live_with_is_reported() -> None:
    limited = ["prlimit", "--nofile=40:40", sys.executable, "-m", "inflight.cli", "serve", "--port", "0"]
    if shutil.which(limited[0]) is None:
        pytest.skip("prlimit sets the limit")
    ended = subprocess.run(limited, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1 and "have 40 open files, and a server needs 64; raise" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(("descriptors", "possible"), [(64, 32), (300, 172), (1024, 896), (9000, 4096)])
def test_a_system_with_few_descriptors_takes_fewer_connections(descriptors: int, possible: int) -> None:
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (60, {descriptors}));"
        "from inflight.server.listening import possible_connections as up; print(up(4096));"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(possible), str(descriptors)]


def test_a_client_that_hangs_up_after_pipelining_ends_its_calls(server: Server) -> None:
    body = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True, "n": 8}
    with Raw(server) as raw:
        raw.send(request(body) + request(body))
        assert raw.socket.recv(100)
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert server.settled(lambda: server.get("/health").json()["detail"].startswith("0 calls"))
