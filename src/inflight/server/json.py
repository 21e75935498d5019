"""JSON answers, and what the OpenAPI document says of bodies and of every endpoint's errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Scope

from inflight.server.answers import ANSWERS, Error, MessagesError
from inflight.server.call import EndpointName
from inflight.server.endpoints.registry import ENDPOINTS
from inflight.server.errors import ApiError
from inflight.server.messages.errors import body_of as messages_error
from inflight.server.messages.errors import is_of_messages, status_of

_SCHEMAS = "#/components/schemas/{name}"


class JsonResponse(JSONResponse):
    """ASCII, because a client's text may hold half a surrogate pair, which UTF-8 cannot."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")


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


def documented(
    model: type[BaseModel], more_content: dict[str, Any] | None = None, error: type[BaseModel] = Error
) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: its answer, and the shape of its errors."""
    answer: dict[str, Any] = {"model": model, "description": "The answer"}
    if more_content:
        answer["content"] = more_content
    return {
        200: answer,
        "4XX": {"model": error, "description": "The request is to blame, or comes at the wrong time"},
        "5XX": {"model": error, "description": "The server is to blame, or is not ready"},
    }


def add_endpoint(
    routes: APIRouter, name: EndpointName, answer: Callable[..., Any], more_content: dict[str, Any] | None = None
) -> None:
    """The registry's endpoint as a route. answer: gives its responses. more_content: than JSON."""
    one = ENDPOINTS[name]
    answer.__doc__ = one.about  # which the web framework shows
    routes.add_api_route(
        one.path,
        answer,
        methods=["POST"],
        name=one.route,
        responses=documented(ANSWERS[name], more_content, MessagesError if is_of_messages(one.path) else Error),
        response_class=JsonResponse,
        openapi_extra=body_of(one.body.kind),
    )


def body_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The `openapi_extra` of a route whose body is read by hand."""
    schema = {"$ref": _SCHEMAS.format(name=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def body_schemas(kinds: Iterable[type[msgspec.Struct]]) -> dict[str, Any]:
    """Components of the document that `body_of` points to."""
    return msgspec.json.schema_components(kinds, ref_template=_SCHEMAS)[1]
