"""The web application: routes, who may use them, and how everything that goes wrong is told.

Knows FastAPI; what the routes do, their own files know.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import APIKeyHeader, HTTPBearer
from fastapi_offline import FastAPIOffline
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from inflight.server.access_log import AccessLog, Observe
from inflight.server.batch.endpoints import Kept
from inflight.server.batch.endpoints import router as batch_routes
from inflight.server.batch.models import BatchBody
from inflight.server.bodies.adapters import LoadAdapterBody, UnloadAdapterBody
from inflight.server.bodies.residency import ModelBody
from inflight.server.endpoints.adapters import adapter_routes
from inflight.server.endpoints.generation import generation_routes
from inflight.server.endpoints.models import model_routes
from inflight.server.endpoints.registry import ENDPOINTS
from inflight.server.endpoints.residency import residency_routes
from inflight.server.endpoints.state import Metrics, state_routes
from inflight.server.errors import ApiError, invalid, without_frames
from inflight.server.ingress.answering import request_id_headers
from inflight.server.ingress.authentication import Authentication
from inflight.server.ingress.body_budget import BodyBudget
from inflight.server.ingress.body_reader import BodyReader
from inflight.server.ingress.browser_guard import BrowserGuard
from inflight.server.ingress.hosts import Hosts
from inflight.server.ingress.request_share import RequestShare
from inflight.server.ingress.route_table import RouteTable
from inflight.server.ingress.single_headers import SingleHeaders
from inflight.server.ingress.turns import RequestTurns, Turns
from inflight.server.json import body_schemas, error_response
from inflight.server.live.routes import Live, live_routes, page_routes
from inflight.server.notices import IGNORED_FIELDS, MAX_TOKENS
from inflight.server.offload import offload
from inflight.server.responses.endpoints import response_routes
from inflight.server.service import Service
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenant, Tenants
from inflight.server.tracing.middleware import SpanSink, TraceRequests

BODIES: tuple[type[Struct], ...] = (
    *(one.body.kind for one in ENDPOINTS.values()),
    *(BatchBody, LoadAdapterBody, UnloadAdapterBody, ModelBody),
)
_BEARER = HTTPBearer(auto_error=False, description="The key that names the tenant.")
_KEY = APIKeyHeader(
    name="x-api-key",
    auto_error=False,
    description="The same key, as Anthropic's clients send it.",
)


def make_app(
    service: Service,
    tenants: Tenants,
    metrics: Metrics,
    version: str,
    observe: Observe = lambda route, status, seconds: None,
    jobs: Kept | None = None,
    before: Callable[[ASGIApp], ASGIApp] | None = None,
    spans: SpanSink | None = None,
    live: Live | None = None,
) -> FastAPI:
    """observe: told of every HTTP request. jobs: batch jobs and stored responses, where there is a place to keep them.
    before: what stands between the ingress and the routes. spans: told of requests to models, where traces are made.
    live: what the live page is fed with; None: there is none."""
    app = FastAPIOffline(
        redoc_url=None,
        title="inflight",
        version=version,
        description="OpenAI-compatible inference with continuous batching.",
        separate_input_output_schemas=False,
    )
    tenant_of = authenticated(tenants)
    responses = jobs if service.settings.store_responses else None
    kept = None if responses is None else lambda: responses.kept_responses
    routers = [
        generation_routes(service, tenant_of, kept),
        model_routes(service, tenant_of),
        adapter_routes(service, tenant_of),
        residency_routes(service, tenant_of),
        state_routes(service, metrics, version),
        _no_jobs() if jobs is None else batch_routes(jobs, tenant_of),
        _no_responses() if responses is None else response_routes(responses, tenant_of),
        live_routes(live, tenant_of),
        *([page_routes()] if service.settings.ui else []),
    ]
    for router in routers:
        app.include_router(router)
    table = RouteTable([*app.routes, *(route for router in routers for route in router.routes)])
    if before is not None:
        app.add_middleware(before)
    _add_ingress(app, service.settings, tenants)
    if spans is not None:
        app.add_middleware(TraceRequests, sink=spans)
    app.add_middleware(AccessLog, observe=observe, template=table.template)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _wrong_query)
    app.add_exception_handler(HTTPException, partial(_http_error, table))
    app.add_exception_handler(Exception, _fault)
    app.openapi = cache(partial(_document, app.openapi))  # type: ignore[method-assign]
    _show_document(app)
    return app


def _show_document(app: FastAPI) -> None:
    """Made when it is first asked for, and beside the event loop: it takes a quarter of a second. FastAPI's own route,
    which this one stands before, would make it in the loop."""

    async def document(_: Request) -> Response:
        return JSONResponse(await offload(app.openapi))

    assert app.openapi_url is not None, "the page at /docs shows it"
    app.router.routes.insert(0, Route(app.openapi_url, document, include_in_schema=False))


def _document(generated: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The OpenAPI document, with the bodies that are read by hand, and without the status that FastAPI supposes for
    wrong parameters, which is 400 here."""
    document = generated()
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(body_schemas(BODIES))
    for supposed in ("HTTPValidationError", "ValidationError"):
        schemas.pop(supposed, None)
    for path in document["paths"].values():
        for operation in path.values():
            if operation["responses"].pop("422", None) and not {"400", "4XX"} & set(operation["responses"]):
                error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
                operation["responses"]["400"] = {
                    "description": "A parameter is wrong; `param` names it.",
                    "content": error,
                }
    return document


def _add_ingress(app: FastAPI, settings: ServerSettings, tenants: Tenants) -> None:
    """Add the layers that a request passes before its route, the last one added first."""
    mebibyte, turns = 1 << 20, Turns()
    most, budget = int(settings.max_body_mb * mebibyte), int(settings.body_budget_mb * mebibyte)
    app.add_middleware(
        BodyReader,
        budget=BodyBudget(budget, share=max(budget // 4, most), longest=most),
        turns=turns,
        most=most,
        seconds=settings.body_timeout,
        upload_seconds=settings.upload_timeout,
    )
    app.add_middleware(RequestShare, most=settings.connections_of_one(settings.max_connections))
    app.add_middleware(Authentication, tenants=tenants)
    if not tenants.required:
        hosts = Hosts((settings.host, *settings.allowed_hosts))
        refuse_hosts = settings.is_loopback or bool(settings.allowed_hosts)
        app.add_middleware(BrowserGuard, hosts=hosts, origins=settings.cors_origin, refuse_hosts=refuse_hosts)
    app.add_middleware(SingleHeaders)
    if settings.cors_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origin,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=("X-Request-Id", "Request-Id", "Retry-After", IGNORED_FIELDS, MAX_TOKENS),
        )
    app.add_middleware(RequestTurns, turns=turns)


def _no_jobs() -> APIRouter:
    """Return the error where batch jobs would be."""
    routes = APIRouter(include_in_schema=False)

    async def nothing() -> None:
        raise ApiError(404, "This server keeps no files and no batch jobs; start it with --data-dir.", code="not_found")

    for path in ("/v1/files", "/v1/files/{rest:path}", "/v1/batches", "/v1/batches/{rest:path}"):
        routes.add_api_route(path, nothing, methods=["GET", "POST", "DELETE"])
    return routes


def _no_responses() -> APIRouter:
    """Return the error where stored responses would be."""
    routes = APIRouter(include_in_schema=False)

    async def nothing() -> None:
        raise ApiError(404, "This server stores no responses; start it with --store-responses.", code="not_found")

    routes.add_api_route("/v1/responses/{rest:path}", nothing, methods=["GET", "DELETE"])
    return routes


def authenticated(tenants: Tenants) -> Any:
    """The dependency that tells whose request it is, as the ingress has found out."""

    async def tenant_of(request: Request) -> Tenant:
        tenant: Tenant = request.state.tenant
        return tenant

    async def tenant_of_key(request: Request, _: Any = Depends(_BEARER), __: Any = Depends(_KEY)) -> Tenant:
        return await tenant_of(request)

    return tenant_of_key if tenants.required else tenant_of  # the document asks for keys where the server does


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _told(request, error)


async def _wrong_query(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = [one for one in first["loc"] if isinstance(one, str)]  # a list's index names nothing
    name, given = place[-1][:60], repr(first.get("input"))[:60]
    message = str(first["msg"])
    return _told(request, invalid(f"{name} is {given}; {message[:1].lower()}{message[1:]}.", name, "invalid_value"))


async def _http_error(table: RouteTable, request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        told = ApiError(
            404, f"There is nothing at {request.url.path}; GET /docs lists what there is.", code="not_found"
        )
    elif error.status_code == 405:
        told = ApiError(405, f"{request.method} is not for {request.url.path}.", code="method_not_allowed")
    else:
        told = ApiError(error.status_code, f"{error.detail}.")
    response = _told(request, told)
    response.headers.update(error.headers or {})
    if error.status_code == 405:  # the web framework names the methods of the first route of the path
        response.headers["Allow"] = ", ".join(sorted(table.methods(request.scope)))
    return response


async def _fault(request: Request, error: Exception) -> Response:
    told = f"The server made a mistake ({type(error).__name__}); its log has the details."
    response = _told(request, ApiError(500, told, type="server_error", code="internal_error"))
    response.raw_headers.extend(request_id_headers(request.scope))  # answered outside the ingress
    return response


def _told(request: Request, error: ApiError) -> Response:
    """The answer; the log has it from the request's state."""
    request.state.error = without_frames(error)
    return error_response(error, request.scope)
