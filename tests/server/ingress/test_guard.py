"""Requests that are refused by their headers: of pages of other sites, and with headers that stand twice."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from inflight.server.ingress.guard import BrowserGuard

from ..conftest import Server
from .raw import Raw, head

COMPLETIONS = "/v1/completions"
BODY = {"prompt": "Once", "max_tokens": 1}


def outcome(answer: httpx.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.json().get("error", {}).get("code")


def guarded(*hosts: str) -> BrowserGuard:
    async def app(scope: Scope, receive: Receive, send: Send) -> None: ...

    return BrowserGuard(app, hosts, ())


def test_names_with_a_dot_must_be_known() -> None:
    guard = guarded("127.0.0.1", "llm.example.com", "*.corp.example.com")
    for host in (
        *(
            "localhost",
            "localhost:8000",
            "127.0.0.1:8000",
            "[::1]:8000",
            "::1",
            "10.1.2.3",
            "gpu-box:80",
            "a.localhost",
        ),
        *("LLM.example.com", "llm.example.com.", "llm.example.com:443", "x.corp.example.com", ""),
    ):
        assert guard.knows(host), host
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "corp.example.com", "1.2.3"):
        assert not guard.knows(host), host
    assert guarded("*").knows("evil.example")


def test_a_name_that_was_made_to_point_here_is_refused(server: Server) -> None:
    for path in ("/", "/v1/models"):
        refused = server.get(path, headers={"Host": "evil.example:8000"})
        assert outcome(refused) == (403, "unknown_host")
        assert refused.json()["error"]["message"].startswith(
            "Host 'evil.example' is not allowed; add --allowed-hosts evil.example"
        )
    assert outcome(server.post(COMPLETIONS, BODY, headers={"Host": "evil.example"})) == (403, "unknown_host")
    for path in ("/health", "/metrics"):
        assert server.get(path, headers={"Host": "gpu-box.lan:8000"}).status_code == 200, "probes call it by any name"
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 200"), "old clients send none"


def test_a_server_for_others_is_called_by_any_name_until_some_are_given(start: Callable[..., Server]) -> None:
    server = start("--host", "0.0.0.0")
    for name in ("gpu-box.lan", "gpu-box.lan", "llm.example.com"):
        assert server.post(COMPLETIONS, BODY, headers={"Host": name}).status_code == 200
    page = {"Host": "gpu-box.lan", "Origin": "https://evil.example"}
    assert outcome(server.post(COMPLETIONS, BODY, headers=page)) == (403, "cross_origin")
    server.stop()
    warned = [line for line in server.log if "--allowed-hosts" in line]
    assert len(warned) == 1 and "'gpu-box.lan'" in warned[0]
    named = start("--host", "0.0.0.0", "--allowed-hosts", "llm.example.com")
    assert named.post(COMPLETIONS, BODY, headers={"Host": "llm.example.com"}).status_code == 200
    assert outcome(named.post(COMPLETIONS, BODY, headers={"Host": "gpu-box.lan"})) == (403, "unknown_host")


def test_pages_of_others_may_not_call_it(server: Server) -> None:
    form = {"purpose": (None, "batch"), "file": ("a.jsonl", b"{}\n")}
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "same-origin"},
    ):
        assert outcome(server.post(COMPLETIONS, BODY, headers=headers)) == (403, "cross_origin"), headers
        upload = httpx.post(server.url + "/v1/files", files=form, headers=headers)
        assert outcome(upload) == (403, "cross_origin"), headers
    for headers in ({}, {"Origin": server.url}, {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}):
        assert server.post(COMPLETIONS, BODY, headers=headers).status_code == 200, headers
    answer = server.get("/v1/models", headers={"Origin": "https://evil.example"})
    assert answer.status_code == 200 and "access-control-allow-origin" not in answer.headers
    preflight = httpx.options(server.url + COMPLETIONS, headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in preflight.headers


@pytest.mark.wide
def test_origins_that_are_named_may(start: Callable[..., Server], keys_file: Path) -> None:
    friend = "https://chat.example.com"
    server = start("--cors-origin", friend, "--cors-origin", "http://localhost:3000", "--allowed-hosts", "a.example")
    asked = {
        "Origin": friend,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    preflight = httpx.options(server.url + COMPLETIONS, headers=asked)
    assert preflight.status_code == 200 and preflight.headers["access-control-allow-origin"] == friend
    answer = server.post(COMPLETIONS, BODY, headers={"Origin": friend, "Host": "a.example"})
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == friend
    assert outcome(server.post(COMPLETIONS, BODY, headers={"Origin": "https://evil.example"})) == (
        403,
        "cross_origin",
    )
    keyed = start("--cors-origin", "*", "--api-keys-file", str(keys_file))
    preflight = httpx.options(keyed.url + COMPLETIONS, headers={**asked, "Origin": "https://x.example"})
    assert preflight.status_code == 200, "a preflight has no key"
    refused = keyed.post(COMPLETIONS, BODY, headers={"Origin": "https://x.example"})
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == "*", "and may be read"


def test_with_keys_names_and_origins_do_not_matter(keyed: Server) -> None:
    headers = {"Host": "llm.example", "Origin": "https://x.example", "Authorization": "Bearer sk-acme"}
    assert keyed.post(COMPLETIONS, BODY, headers=headers).status_code == 200


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_reading_needs_no_origin(server: Server, method: str) -> None:
    assert httpx.request(method, server.url + "/health", headers={"Origin": "https://x.example"}).status_code == 200


@pytest.mark.parametrize(
    "name", ["Authorization", "X-Api-Key", "X-Request-Id", "Content-Type", "X-Session-Id", "X-Slo-Ttft-Ms", "Host"]
)
def test_a_second_header_is_refused(server: Server, name: str) -> None:
    with Raw(server) as raw:
        answer = raw.send(head("GET", "/v1/models", f"{name}: one", f"{name}: two")).one()
    assert answer.status == 400 and answer.error["code"] == "duplicate_header"
    assert (
        f"The header {name} is there more than once" in answer.error["message"]
        and answer.error["param"] == name.lower()
    )


def test_headers_that_are_lists_may_stand_twice(server: Server) -> None:
    with Raw(server) as raw:
        for name in ("Accept", "X-Forwarded-For", "Via"):
            assert raw.send(head("GET", "/v1/models", f"{name}: one", f"{name}: two")).one().status == 200
