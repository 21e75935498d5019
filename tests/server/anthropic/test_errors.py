"""Our errors as Anthropic's: types and statuses."""

from __future__ import annotations

import pytest

from inflight.server.errors import ApiError, is_of_messages, messages_error, messages_status


@pytest.mark.parametrize(
    ("status", "code", "expected", "kind"),
    [
        (400, None, 400, "invalid_request_error"),
        (401, "invalid_api_key", 401, "authentication_error"),
        (403, "cross_origin", 403, "permission_error"),
        (404, "model_not_found", 404, "not_found_error"),
        (405, "method_not_allowed", 405, "invalid_request_error"),
        (408, "body_timeout", 408, "timeout_error"),
        (408, "request_timeout", 504, "timeout_error"),
        (413, "body_too_large", 413, "request_too_large"),
        (429, "rate_limit_exceeded", 429, "rate_limit_error"),
        (500, "step_failed", 500, "api_error"),
        (503, "draining", 529, "overloaded_error"),
    ],
)
def test_types_and_statuses(status: int, code: str | None, expected: int, kind: str) -> None:
    error = ApiError(status, "So.", code=code)
    body = messages_error(error, "req_1")
    assert messages_status(error) == expected and body["request_id"] == "req_1" and body["type"] == "error"
    details = {"error_code": code or "invalid_request"}  # every error has a code
    assert body["error"] == {"type": kind, "message": "So.", "details": details}


def test_which_paths_speak_so() -> None:
    assert is_of_messages("/v1/messages") and is_of_messages("/v1/messages/batches")
    assert not is_of_messages("/v1/messages_of_others") and not is_of_messages("/v1/chat/completions")
