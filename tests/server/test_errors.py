"""Errors: one shape, in which nothing that clients look for is missing."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.core.types.request import RequestRefused
from inflight.server.errors import MAX_MESSAGE, MAX_PARAM, ApiError, invalid, refused

from .conftest import Server


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (invalid("No."), "invalid_request"),
        (invalid("No.", "n"), "invalid_value"),
        (invalid("No.", "n", "unsupported_field"), "unsupported_field"),
        (refused(RequestRefused("No.", field="priority")), "invalid_value"),
        (ApiError(404, "No."), "not_found"),
        (ApiError(418, "No."), "http_418"),
        (ApiError(500, "No."), "server_error"),
    ],
)
def test_every_error_has_a_code(error: ApiError, code: str) -> None:
    assert error.code == error.body["error"]["code"] == code


LONG = "x" * 16_000
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


def schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


@pytest.mark.parametrize(
    "more",
    [
        {"guided_regex": "[z-a]" + LONG},
        {"guided_regex": "(" * 9000 + LONG[:7000]},
        {"guided_grammar": "root ::= " + LONG},
        {"guided_grammar": "start: " + LONG},
        schema({"type": LONG}),
        schema({"$ref": LONG}),
        schema({"$ref": "#/" + LONG}),
        schema({"pattern": "[z-a]" + LONG}),
        {"structured_outputs": {"structural_tag": LONG}},
        {"model": LONG[:512]},
        {"service_tier": LONG},
        {"stop": LONG},
        {"logit_bias": {LONG: 1}},
        {"tools": [{"type": "function", "function": {"name": LONG[:512]}}]},
        {"messages": [{"role": LONG, "content": "Hi"}]},
        {"messages": [{"role": "user", "content": [{"type": LONG}]}]},
        {"stream_options": {LONG: [1], "include_usage": LONG}},
        {"chat_template_kwargs": {LONG[:256]: 1, "messages": LONG}},
    ],
    ids=lambda more: str(more)[:40],
)
def test_what_an_error_repeats_of_a_body_is_short(server: Server, more: dict[str, Any]) -> None:
    answer = server.post("/v1/chat/completions", HELLO | more)
    error = answer.json()["error"]
    assert answer.status_code in (400, 404), answer.text[:300]
    assert LONG[:401] not in answer.text and len(answer.text) < 1000
    assert error["message"].endswith((".", "?"))


def test_an_error_is_bounded_whatever_it_is_made_of() -> None:
    error = invalid(f"{LONG}; leave it out.", LONG)
    assert len(error.message) <= MAX_MESSAGE and len(str(error)) <= MAX_MESSAGE and len(error.param or "") <= MAX_PARAM


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/chat/completions", " Did you mean /v1/chat/completions?"),
        ("/v1/chat/completion", " Did you mean /v1/chat/completions?"),
        ("/v1/competions", " Did you mean /v1/completions?"),
        ("/nothing/alike", ""),
        ("/" + "x" * 5000, ""),
    ],
)
def test_a_path_that_is_written_wrong_is_met_with_the_right_one(server: Server, path: str, hint: str) -> None:
    answer = server.post(path, HELLO)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"
    shown = path if len(path) < 60 else path[:59] + "…"
    assert answer.json()["error"]["message"] == f"No endpoint {shown}.{hint} GET /docs lists the endpoints."


def test_the_list_of_models_may_end_with_a_slash(server: Server) -> None:
    assert server.get("/v1/models/").json() == server.get("/v1/models").json()


def test_stream_options_of_a_whole_answer_say_nothing(server: Server) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for stream in ({"stream": None}, {"stream": False}, {}):
        answer = server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 2, "stream_options": options} | stream)
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 2
    obfuscation = {"input": "Hi", "max_output_tokens": 2, "stream_options": {"include_obfuscation": False}}
    assert server.post("/v1/responses", obfuscation).status_code == 200
