"""Notices beside an answer: headers that name ignored fields and a shorter answer, and a log that cannot be flooded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from inflight.server.ignored_field_log import MAX_REPORTED, REPORT_SECONDS, IgnoredFieldLog

from .conftest import Server

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
ODD: dict[str, Any] = {"keep_alive": "5m", "temprature": 1, "wörd, x": 2, "options": {"num_ctx": 9}, "typical_p": None}
NAMED = "keep_alive, temprature, w%C3%B6rd%2C x, options.num_ctx"


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/chat/completions", HELLO | ODD, NAMED),
        ("/v1/chat/completions", HELLO | ODD | {"stream": True}, NAMED),
        ("/v1/chat/completions", HELLO, None),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 2, "id_slot": 1}, "id_slot"),
        ("/v1/messages", HELLO | {"id_slot": 1}, "id_slot"),
        ("/v1/messages/count_tokens", HELLO | {"id_slot": 1}, "id_slot"),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 2, "id_slot": 1}, "id_slot"),
        ("/tokenize", {"prompt": "Hi", "id_slot": 1}, "id_slot"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_the_answer_names_ignored_fields(server: Server, path: str, body: dict[str, Any], named: str | None) -> None:
    answer = server.post(path, body)
    assert answer.status_code == 200, answer.text
    assert answer.headers.get("x-inflight-ignored-fields") == named
    assert "keep_alive" not in answer.text


def test_the_header_is_short_whatever_names_are(server: Server) -> None:
    answer = server.post("/v1/chat/completions", HELLO | {f"{i}" + "😀" * 500: i for i in range(40)})
    named = answer.headers["x-inflight-ignored-fields"]
    assert answer.status_code == 200 and len(named) <= 1024 and named.endswith(", 24 more")


def test_what_becomes_of_unknown_fields_is_set(start: Callable[..., Server]) -> None:
    silent = start("--unknown-fields", "ignore")
    answer = silent.post("/v1/chat/completions", HELLO | ODD)
    assert answer.status_code == 200 and "x-inflight-ignored-fields" not in answer.headers
    assert "keep_alive" not in "".join(silent.log)
    strict = start("--unknown-fields", "refuse")
    error = strict.post("/v1/chat/completions", HELLO | {"temprature": 1}).json()["error"]
    assert error["code"] == "unknown_field" and "Did you mean 'temperature'?" in error["message"]
    assert strict.post("/v1/chat/completions", HELLO | {"typical_p": None, "n_predict": 2}).status_code == 200


def test_an_answer_that_the_context_cuts_says_so(server: Server) -> None:
    asked = {"prompt": [7] * 1000, "max_tokens": 100, "ignore_eos": True}
    answer = server.post("/v1/completions", asked)
    assert answer.headers["x-inflight-max-tokens"] == str(answer.json()["usage"]["completion_tokens"]) == "24"
    forced = {"prompt": [7] * 1000, "max_tokens": None, "output_tokens": 100}
    assert server.post("/v1/completions", forced).headers["x-inflight-max-tokens"] == "24"
    assert "x-inflight-max-tokens" not in server.post("/v1/completions", asked | {"max_tokens": 24}).headers


def test_the_log_names_each_field_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = IgnoredFieldLog(lambda: now)
    for _ in range(3):
        log.note("chat", ("temprature", "keep_alive"))
    (line,) = caplog.messages
    assert "'temprature' (did you mean 'temperature'?), 'keep_alive'" in line and "/v1/chat/completions" in line
    now = REPORT_SECONDS
    log.note("chat", ("keep_alive",))
    assert len(caplog.messages) == 2


def test_a_known_name_that_another_field_outweighs_has_no_hint(caplog: pytest.LogCaptureFixture) -> None:
    IgnoredFieldLog(lambda: 0.0).note("chat", ("n_predict",))
    assert "'n_predict' (each is reported" in caplog.text


def test_the_log_is_not_filled_by_names(caplog: pytest.LogCaptureFixture) -> None:
    log = IgnoredFieldLog(lambda: 0.0)
    for number in range(2 * MAX_REPORTED):
        log.note("chat", (f"name {number}",))
    assert len(caplog.messages) == MAX_REPORTED
