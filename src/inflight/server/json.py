"""JSON answers and errors, in the form that the API of a path has."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from inflight.server.errors import ApiError, is_of_messages, messages_error, messages_status


class JsonResponse(JSONResponse):
    """ASCII, because a client's text may hold half a surrogate pair, which UTF-8 cannot."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")


def json_of(answer: msgspec.Struct, status: int = 200) -> Response:
    """Return the response that holds a struct."""
    return Response(msgspec.json.encode(answer), status, media_type="application/json")


async def body_bytes(request: Request) -> bytes:
    """Return the body, which the ingress gives in one piece, and once, so that only the caller keeps it."""
    content: bytes = (await request.receive()).get("body", b"")
    return content


def error_response(error: ApiError, scope: Scope) -> JsonResponse:
    """Return the response to a request that fails. scope: of the request."""
    status, body = error_body(error, scope["path"], scope.get("state", {}).get("request_id"))
    return JsonResponse(body, status, error.headers)


def error_body(error: ApiError, path: str, request_id: str | None = None) -> tuple[int, dict[str, Any]]:
    """Return status and body, in the form of the API that the path belongs to."""
    if is_of_messages(path):
        return messages_status(error), messages_error(error, request_id)
    return error.status, error.body
