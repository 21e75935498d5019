"""Errors: one shape, in which nothing that clients look for is missing."""

from __future__ import annotations

import pytest

from inflight.core.types.request import RequestRefused
from inflight.server.errors import ApiError, invalid, refused

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


def test_the_list_of_models_may_end_with_a_slash(server: Server) -> None:
    assert server.get("/v1/models/").json() == server.get("/v1/models").json()


def test_stream_options_of_a_whole_answer_say_nothing(server: Server) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for stream in ({"stream": None}, {"stream": False}, {}):
        answer = server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 2, "stream_options": options} | stream)
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 2
    obfuscation = {"input": "Hi", "max_output_tokens": 2, "stream_options": {"include_obfuscation": False}}
    assert server.post("/v1/responses", obfuscation).status_code == 200
