"""The web application: routes, who may use them, and the answers to errors."""

from __future__ import annotations

import asyncio
from functools import cached_property, partial

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from inflight.counted import shortened
from inflight.server.access_log import AccessLog, Observe
from inflight.server.asgi import IGNORED_FIELDS, MAX_TOKENS, UnderPath, error_response, request_id_headers
from inflight.server.docs_page import docs_page
from inflight.server.endpoints import endpoint_routes
from inflight.server.engine_access import EngineAccess
from inflight.server.errors import ApiError, without_frames
from inflight.server.ingress.bodies import BodyBudget, BodyLimits
from inflight.server.ingress.guard import Authentication, BrowserGuard
from inflight.server.jobs.service import JobService
from inflight.server.live.routes import Live, live_routes, page_routes
from inflight.server.llama_cpp.routes import llama_cpp_routes
from inflight.server.ollama.models import ollama_routes
from inflight.server.ollama.schema import OllamaModelBody
from inflight.server.openai.batches import BatchBody, batch_routes
from inflight.server.openai.files import file_routes
from inflight.server.openai.models import (
    LoadAdapterBody,
    ModelBody,
    UnloadAdapterBody,
    adapter_routes,
    model_routes,
    residency_routes,
)
from inflight.server.openai.responses.routes import response_routes
from inflight.server.openapi import Document, openapi_document
from inflight.server.registry import ENDPOINTS
from inflight.server.routes import Operation, Routes, RouteTable
from inflight.server.service import Service
from inflight.server.settings import ServerSettings
from inflight.server.state import Metrics, state_routes
from inflight.server.tenants import Tenants
from inflight.server.tracing.middleware import SpanSink, TraceRequests
from inflight.server.vllm_routes import vllm_routes

BODIES: tuple[type[Struct], ...] = (
    *(one.body.kind for one in ENDPOINTS.values()),
    *(BatchBody, LoadAdapterBody, UnloadAdapterBody, ModelBody, OllamaModelBody),
)
DESCRIPTION = "OpenAI-compatible inference with continuous batching."


class Application(Starlette):
    """The operations as an ASGI application, with the document of them at /openapi.json and as a page at /docs."""

    def __init__(
        self,
        operations: list[Operation],
        version: str,
        *,
        needs_keys: bool,
        ignores_unknown: bool,
        root_path: str = "",
    ):
        """Make the application.

        Args:
            ignores_unknown: Endpoints ignore unknown fields of their bodies, instead of refusing them.
            root_path: Path under which a proxy shows it.
        """
        self._operations, self._needs_keys, self._root_path = operations, needs_keys, root_path
        self._open_bodies = {one.body.kind for one in ENDPOINTS.values()} if ignores_unknown else set()
        self._info = {"title": "inflight", "description": DESCRIPTION, "version": version}
        shown = [Route("/openapi.json", self._show_document), Route("/docs", self._show_page)]
        super().__init__(routes=[*shown, *(one.route for one in operations)])

    def openapi(self) -> Document:
        """Return the OpenAPI document."""
        document = openapi_document(self._operations, self._info, self._needs_keys, self._open_bodies)
        return document | {"servers": [{"url": self._root_path}]} if self._root_path else document

    @cached_property
    def _document(self) -> bytes:
        return msgspec.json.encode(self.openapi())

    @cached_property
    def _page(self) -> bytes:
        has_ui = any(operation.route.path == "/playground" for operation in self._operations)
        return docs_page(msgspec.json.decode(self._document), has_ui)

    async def _show_document(self, _: Request) -> Response:
        """Answer with the document, which is made when it is first asked for, and beside the event loop."""
        return Response(await asyncio.to_thread(lambda: self._document), media_type="application/json")

    async def _show_page(self, _: Request) -> Response:
        headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return Response(await asyncio.to_thread(lambda: self._page), media_type="text/html", headers=headers)


def make_app(
    service: Service,
    tenants: Tenants,
    metrics: Metrics,
    version: str,
    observe: Observe = lambda route, status, seconds: None,
    jobs: JobService | None = None,
    spans: SpanSink | None = None,
    live: Live | None = None,
    engines: EngineAccess | None = None,
) -> Application:
    """Return the application.

    Args:
        observe: Takes route, status and seconds of every HTTP request.
        jobs: Batch jobs and stored responses; None where there is no folder for them.
        spans: Takes the requests to models, where traces are made.
        live: Feeds the live page; None where there is none.
        engines: Asks them beside calls.
    """
    responses = jobs if service.settings.store_responses else None
    stored = None if responses is None else lambda: responses.responses
    generation, without_engine = endpoint_routes(service, stored)
    routes = [
        generation,
        model_routes(service),
        without_engine,
        adapter_routes(service),
        residency_routes(service),
        state_routes(service, metrics, version),
        ollama_routes(service, version),
        vllm_routes(service, engines, version),
        llama_cpp_routes(service, engines, version),
        *([_no_jobs()] if jobs is None else [file_routes(jobs), batch_routes(jobs)]),
        _no_responses() if responses is None else response_routes(responses),
        live_routes(live),
        *([page_routes()] if service.settings.ui else []),
    ]
    operations = [operation for group in routes for operation in group.operations]
    ignores_unknown = service.settings.unknown_fields != "refuse"
    root_path = service.settings.root_path
    needs_keys = tenants.required
    app = Application(operations, version, needs_keys=needs_keys, ignores_unknown=ignores_unknown, root_path=root_path)
    table = RouteTable(app.routes)
    _add_ingress(app, service.settings, tenants)
    if spans is not None:
        app.add_middleware(TraceRequests, sink=spans)
    app.add_middleware(AccessLog, observe=observe, template=table.template)
    if root_path:
        app.add_middleware(UnderPath, root_path=root_path)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, partial(_http_error, table))
    app.add_exception_handler(Exception, _fault)
    return app


def _add_ingress(app: Starlette, settings: ServerSettings, tenants: Tenants) -> None:
    """Add the layers that a request passes before its route, the last one added first."""
    most, budget = int(settings.max_body_mb * 2**20), int(settings.body_budget_mb * 2**20)
    app.add_middleware(
        BodyLimits,
        budget=BodyBudget(budget, share=max(budget // 4, most), longest=most),
        seconds=settings.body_timeout,
        upload_seconds=settings.upload_timeout,
    )
    app.add_middleware(Authentication, tenants=tenants)
    if not tenants.required:
        app.add_middleware(
            BrowserGuard,
            hosts=(settings.host, *settings.allowed_hosts),
            origins=settings.cors_origin,
            refuse_hosts=settings.is_loopback or bool(settings.allowed_hosts),
        )
    if settings.cors_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origin,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=("X-Request-Id", "Request-Id", "Retry-After", IGNORED_FIELDS, MAX_TOKENS),
        )


def _no_jobs() -> Routes:
    """Return the error where batch jobs would be."""

    async def no_jobs(_: Request) -> Response:
        raise ApiError(404, "Files and batch jobs are disabled; start the server with --data-dir.", code="not_found")

    routes = Routes(is_documented=False)
    for path in ("/v1/files", "/v1/files/{rest:path}", "/v1/batches", "/v1/batches/{rest:path}"):
        for method in ("GET", "POST", "DELETE"):
            routes.add(method, path, no_jobs)
    return routes


def _no_responses() -> Routes:
    """Return the error where stored responses would be."""

    async def no_responses(_: Request) -> Response:
        raise ApiError(404, "Stored responses are disabled; start the server with --store-responses.", code="not_found")

    routes = Routes(is_documented=False)
    for method in ("GET", "DELETE"):
        routes.add(method, "/v1/responses/{rest:path}", no_responses)
    return routes


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _answered(request, error)


async def _http_error(table: RouteTable, request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        path = request.scope["path"]
        sentence = f"No endpoint {shortened(path)}.{table.nearest(path)} GET /docs lists the endpoints."
        shown = ApiError(404, sentence, code="not_found")
    elif error.status_code == 405:  # the web framework names the methods of the first route of the path
        allowed = ", ".join(sorted(table.methods(request.scope)))
        sentence = f"{request.method} is not allowed for {request.url.path}; use {allowed}."
        shown = ApiError(405, sentence, code="method_not_allowed")
    else:
        shown = ApiError(error.status_code, f"{error.detail}.")
    response = _answered(request, shown)
    response.headers.update(error.headers or {})
    if error.status_code == 405:
        response.headers["Allow"] = allowed
    return response


async def _fault(request: Request, error: Exception) -> Response:
    known = request.state.request_id
    sentence = f"Internal server error (request {known}); see the server's log."
    response = _answered(request, ApiError(500, sentence, type="server_error", code="internal_error"))
    response.raw_headers.extend(request_id_headers(request.scope))  # answered outside the ingress
    return response


def _answered(request: Request, error: ApiError) -> Response:
    """Return the answer; the log has it from the request's state."""
    request.state.error = without_frames(error)
    return error_response(error, request.scope)
