"""JSON answers and errors, in the form that the API of a path has."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from inflight.server.errors import ApiError
from inflight.server.messages.errors import body_of as messages_error
from inflight.server.messages.errors import is_of_messages, status_of


class JsonResponse(JSONResponse):
    """ASCII, because a client's text may hold half a surrogate pair, which UTF-8 cannot."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")


def json_of(answer: msgspec.Struct, status: int = 200) -> Response:
    """Return the response that holds a struct."""
    return Response(msgspec.json.encode(answer), status, media_type="application/json")


async def body_bytes(request: Request) -> bytes:
    """The body, which the ingress gives in one piece, and once: nobody keeps it but the caller."""
    content: bytes = (await request.receive()).get("body", b"")
    return content


def error_response(error: ApiError, scope: Scope) -> JsonResponse:
    """scope: of the request that it answers."""
    status, body = told(error, scope["path"], scope.get("state", {}).get("request_id"))
    return JsonResponse(body, status, error.headers)


def told(error: ApiError, path: str, request_id: str | None = None) -> tuple[int, dict[str, Any]]:
    """Status and body, in the words of the API that the path belongs to."""
    if is_of_messages(path):
        return status_of(error), messages_error(error, request_id)
    return error.status, error.body
