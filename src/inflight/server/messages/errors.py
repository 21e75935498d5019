"""Errors as Anthropic's clients expect them.

Knows their types, and the status codes that differ from ours; what went wrong, the error itself says.
"""

from __future__ import annotations

from typing import Any

from inflight.server.errors import ApiError

PATH = "/v1/messages"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_CODES = {"thread": "thread_unsupported_request"}  # at which clients' tool runners send the whole conversation instead


def is_of_messages(path: str) -> bool:
    """Whether whoever asks for this path speaks Anthropic's words."""
    return path == PATH or path.startswith(f"{PATH}/")


def status_of(error: ApiError) -> int:
    """A server that cannot take the call now is overloaded; a call that takes too long is the server's fault."""
    if error.code == "request_timeout":
        return 504
    return 529 if error.status == 503 else error.status


def body_of(error: ApiError, request_id: str | None = None) -> dict[str, Any]:
    """details: what our other endpoints say as code and param."""
    status = status_of(error)
    inside: dict[str, Any] = {
        "type": _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error"),
        "message": error.message,
    }
    code = _CODES.get(error.param or "", error.code) if error.code == "unsupported_field" else error.code
    details = {"error_code": code, "param": error.param}
    if any(details.values()):
        inside["details"] = {name: value for name, value in details.items() if value is not None}
    return {"type": "error", "error": inside, "request_id": request_id}
