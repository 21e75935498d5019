"""HTTP as well-behaved clients and operators expect it: ids, methods, redirects, log lines."""

from __future__ import annotations

import json
import urllib.parse
from typing import Any

import httpx
import pytest

from inflight.server.logs import without_values

from ..conftest import Server
from .raw import GENERATE, Raw, head

COMPLETIONS = "/v1/completions"


def lines(server: Server, known: str) -> list[dict[str, Any]]:
    """Log lines with this x-request-id, once there are any."""

    def found() -> list[dict[str, Any]]:
        return [entry for entry in map(json.loads, server.log) if entry.get("x_request_id") == known]

    assert server.settled(lambda: bool(found())), known
    return found()


def test_every_answer_has_the_id_of_its_request(server: Server) -> None:
    for answer in (
        server.get("/health", headers={"X-Request-Id": "mine-1"}),
        server.get("/nowhere", headers={"X-Request-Id": "mine-1"}),
        server.post(COMPLETIONS, GENERATE, headers={"X-Request-Id": "mine-1"}),
        server.post(COMPLETIONS, {"prompt": 7}, headers={"X-Request-Id": "mine-1"}),
        server.post(COMPLETIONS, GENERATE, headers={"X-Request-Id": "mine-1", "Host": "evil.example"}),
        server.post(COMPLETIONS, {**GENERATE, "stream": True}, headers={"X-Request-Id": "mine-1"}),
    ):
        assert answer.headers["x-request-id"] == "mine-1"
    fresh = {server.get("/health").headers["x-request-id"] for _ in range(3)}
    assert len(fresh) == 3
    for unsafe in ("a b", "x" * 200, 'a"b', ""):
        given = server.get("/health", headers={"X-Request-Id": unsafe}).headers["x-request-id"]
        assert given.startswith("req_") and len(given) == 36


def test_lines_have_the_id_of_the_request(server: Server) -> None:
    server.post(COMPLETIONS, GENERATE, headers={"X-Request-Id": "line-ok"})
    (line,) = lines(server, "line-ok")
    assert line["status"] == 200 and line["request_id"].startswith("cmpl")
    server.post(COMPLETIONS, {"prompt": "my secret prompt", "top_p": "secret"}, headers={"X-Request-Id": "line-400"})
    (line,) = lines(server, "line-400")
    assert (line["method"], line["endpoint"], line["status"]) == ("POST", COMPLETIONS, 400)
    assert line["error_param"] == "top_p" and line["error_code"] and line["reason"]
    assert "secret" not in json.dumps(line)
    server.get("/v1/models/secret-model", headers={"X-Request-Id": "line-404"})
    (line,) = lines(server, "line-404")
    assert line["endpoint"] == "/v1/models/{name:path}" and line["status"] == 404
    assert "secret" not in json.dumps(line)
    with Raw(server) as raw:
        raw.send(head("POST", COMPLETIONS, "X-Request-Id: line-413", length=1 << 30)).answer()
    (line,) = lines(server, "line-413")
    assert line["endpoint"] == COMPLETIONS and line["error_code"] == "body_too_large"


@pytest.mark.parametrize(
    ("sentence", "logged"),
    [
        ("top_p is 'my secret'; give a number.", "top_p is …; give a number."),
        ("prompt is [1, 2, 3…; it is too long.", "prompt is …"),
        ("prompt is {'a': 'b'}; no.", "prompt is …"),
        ('The field "it\'s" is unknown.', "The field … is unknown."),
        (r"x is 'it\'s'; no.", "x is …; no."),
        ("x is 'cut off", "x is …"),
        ("This model's maximum context length is 100 tokens.", "This model's maximum context length is 100 tokens."),
    ],
)
def test_a_reason_does_not_hold_what_the_client_wrote(sentence: str, logged: str) -> None:
    assert without_values(sentence) == logged


def test_a_wrong_method_is_refused_with_the_right_ones(server: Server) -> None:
    for path, allowed in (
        (COMPLETIONS, "POST"),
        ("/health", "GET, HEAD"),
        ("/v1/models", "GET, HEAD"),
        ("/v1/files", "GET, HEAD, POST"),
        ("/v1/files/file-1", "DELETE, GET, HEAD"),
        ("/", "GET, HEAD"),
    ):
        answer = httpx.put(server.url + path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed), path


def test_head_is_get_without_a_body(server: Server) -> None:
    for path in ("/health", "/version", "/v1/models", "/docs", "/openapi.json", "/v1/files"):
        got, head_only = server.get(path), httpx.head(server.url + path)
        assert (head_only.status_code, head_only.content) == (200, b""), path
        assert head_only.headers["content-length"] == got.headers["content-length"]
        assert head_only.headers["content-type"] == got.headers["content-type"]
    assert httpx.head(server.url + COMPLETIONS).status_code == 405


def test_a_key_is_not_needed_for_the_front_page(keyed: Server) -> None:
    server = keyed
    page = httpx.get(f"{server.url}/docs")
    assert page.status_code == 200 and server.get("/").status_code == 200
    for part in (piece.split('"')[0] for piece in page.text.split('src="')[1:] + page.text.split('href="')[1:]):
        assert httpx.get(urllib.parse.urljoin(f"{server.url}/docs", part)).status_code == 200, part
    before = server.metric("inflight_http_requests_total", endpoint=COMPLETIONS, status="401")
    assert httpx.put(server.url + COMPLETIONS).status_code == 401
    assert server.metric("inflight_http_requests_total", endpoint=COMPLETIONS, status="401") == before + 1
