"""The web application: routes, who may use them, and how everything that goes wrong is told.

Knows FastAPI; what the routes do, their own files know.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from inflight import __version__
from inflight.server.endpoints.generation import generation_routes
from inflight.server.endpoints.models import model_routes
from inflight.server.endpoints.state import Metrics, state_routes
from inflight.server.errors import ApiError, invalid
from inflight.server.json import error_response
from inflight.server.limits import BodyLimit
from inflight.server.service import Service
from inflight.server.tenants import Tenant, Tenants


def make_app(service: Service, tenants: Tenants, metrics: Metrics, more_routes: Iterable[APIRouter] = ()) -> FastAPI:
    """more_routes: batch jobs, where there is a place to keep them."""
    app = FastAPI(
        title="inflight",
        version=__version__,
        description="OpenAI-compatible inference with continuous batching.",
        separate_input_output_schemas=False,
    )
    tenant_of = authenticated(tenants)
    app.include_router(generation_routes(service, tenant_of))
    app.include_router(model_routes(service, tenant_of))
    app.include_router(state_routes(service, metrics))
    for routes in more_routes:
        app.include_router(routes)
    app.add_middleware(BodyLimit, most=int(service.settings.max_body_mb * 2**20))
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _wrong_body)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _fault)
    return app


def authenticated(tenants: Tenants) -> Any:
    """The dependency that tells whose request it is. Raises ApiError 401."""

    async def tenant_of(request: Request) -> Tenant:
        return tenants.of(request.headers.get("authorization"))

    return tenant_of


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _wrong_body(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(said(error.errors()))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, ApiError):  # raised while the body was read
        return error_response(error.__cause__)
    if error.status_code == 404:
        told = ApiError(
            404, f"There is nothing at {request.url.path}; GET /docs lists what there is.", code="not_found"
        )
    elif error.status_code == 405:
        told = ApiError(405, f"{request.method} is not for {request.url.path}.", code="method_not_allowed")
    else:
        told = ApiError(error.status_code, f"{error.detail}.")
    response = error_response(told)
    response.headers.update(error.headers or {})
    return response


async def _fault(_: Request, error: Exception) -> Response:
    told = f"The server made a mistake ({type(error).__name__}); its log has the details."
    return error_response(ApiError(500, told, type="server_error", code="internal_error"))


def said(errors: Any) -> ApiError:
    """The first mistake of a body, in a sentence, with the field to blame."""
    error = errors[0]
    place = [str(part) for part in error["loc"] if part not in ("body", "query", "path")]
    kind, given = error["type"], error.get("input")
    if kind == "json_invalid":
        return invalid(f"The body is not JSON: {error.get('ctx', {}).get('error', error['msg'])}.", code="invalid_json")
    if not place:
        return invalid("The body is not a JSON object; send one, with Content-Type: application/json.")
    # Of a union, pydantic names each member that did not fit; what a client knows is the field.
    field = ".".join(part for part in place if not _names_a_type(part)) or place[0]
    if kind == "extra_forbidden":
        return invalid(f"The field {field!r} is unknown here; leave it out.{_near(place[-1])}", field, "unknown_field")
    if kind == "missing":
        return invalid(f"The field {field!r} is missing.", field, "missing_field")
    shown = repr(given)
    if len(shown) > 60:
        shown = shown[:57] + "…"
    return invalid(f"{field} is {shown}; {_lowered(error['msg'])}.", field, "invalid_value")


def _names_a_type(part: str) -> bool:
    return (
        part in ("str", "int", "float", "bool") or part[:5] in ("list[", "const") or "[" in part or part[:1].isupper()
    )


def _near(name: str) -> str:
    from inflight.server.bodies.chat import ChatBody
    from inflight.server.bodies.completions import CompletionBody

    known = {*ChatBody.model_fields, *CompletionBody.model_fields}
    near = difflib.get_close_matches(name, known, 1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _lowered(message: str) -> str:
    return message[:1].lower() + message[1:]
