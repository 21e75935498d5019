"""JSON answers, and what the OpenAPI document says of every endpoint's errors."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from starlette.responses import JSONResponse

from inflight.server.answers import Error
from inflight.server.errors import ApiError


class JsonResponse(JSONResponse):
    """ASCII, because a client's text may hold half a surrogate pair, which UTF-8 cannot."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")


def error_response(error: ApiError) -> JsonResponse:
    return JsonResponse(error.body, error.status, error.headers)


def documented(model: type[BaseModel], more_content: dict[str, Any] | None = None) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: its answer, and the one shape of errors."""
    answer: dict[str, Any] = {"model": model, "description": "The answer"}
    if more_content:
        answer["content"] = more_content
    return {
        200: answer,
        "4XX": {"model": Error, "description": "The request is to blame, or comes at the wrong time"},
        "5XX": {"model": Error, "description": "The server is to blame, or is not ready"},
    }
