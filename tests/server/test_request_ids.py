"""One id of a request: in its answer's headers and body, in the log, and in the engine's record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from inflight.server.asgi import call_id_of, request_ids

from .conftest import Server

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hello"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}]},
    "/v1/responses": {"input": "Hello"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hello"}]},
}


@pytest.mark.parametrize("given", [None, "proxy-7f3a"])
def test_an_id_is_found_in_answer_log_and_engine(
    start: Callable[..., Server], tmp_path: Path, given: str | None
) -> None:
    record = tmp_path / "record.jsonl"
    server = start("--record", str(record), "--log-format", "json")
    answers = {}
    for path, body in BODIES.items():
        most = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
        headers = {} if given is None else {"X-Request-Id": f"{given}-{path.rpartition('/')[2]}"}
        answers[path] = httpx.post(server.url + path, json={**body, most: 2}, headers=headers, timeout=60)
        assert answers[path].status_code == 200
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.log if '"inflight.request"' in line]
    engine = record.read_text(encoding="utf-8")
    for path, answer in answers.items():
        shown = answer.headers["x-request-id"]
        assert shown == f"{given}-{path.rpartition('/')[2]}" if given else shown.startswith("req_")
        name = shown.removeprefix("req_")
        (line,) = (one for one in lines if one["endpoint"] == path)
        assert line["x_request_id"] == shown and line["request_id"] == answer.json()["id"]
        own_id = answer.json()["id"].partition("_" if path in ("/v1/responses", "/v1/messages") else "-")[2]
        assert own_id.startswith(name) and f'"{own_id}-0"' in engine


def test_calls_of_one_given_id_have_ids_of_their_own() -> None:
    (shown, first), (_, second) = (request_ids(b"a/b") for _ in range(2))
    assert shown == "a/b" and first.startswith("a-b-") and first != second


def test_an_id_that_cannot_be_shown_everywhere_is_not_taken() -> None:
    for given in (None, b"", b"two words", b"x" * 129, "ä".encode()):
        shown, own_id = request_ids(given)
        assert shown == f"req_{own_id}" and len(own_id) == 32


def test_a_call_is_called_after_its_line() -> None:
    assert call_id_of("batch_req_1-0").startswith("batch_req_1-0-")
