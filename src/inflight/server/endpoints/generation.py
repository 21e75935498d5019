"""/v1/completions and /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from inflight.server.call import Call, EndpointName
from inflight.server.endpoints.registry import GENERATION
from inflight.server.endpoints.registry_routes import add_endpoint
from inflight.server.generating import Keep
from inflight.server.json import body_bytes
from inflight.server.notices import note_ignored, note_max_tokens
from inflight.server.preprocessing.pool import is_long
from inflight.server.preprocessing.wire import PreparedAnswer
from inflight.server.responses.kept import NOT_STORED, KeptResponses
from inflight.server.responses.stored_conversations import StoredConversations
from inflight.server.router_hints import RouterHints, hints_of
from inflight.server.routes import Routes, tenant_of
from inflight.server.sending import ClientGone, EventStreamResponse, WholeAnswer, until_gone
from inflight.server.served import Borrowed, Served
from inflight.server.service import GONE, Service
from inflight.server.tenants import Tenant
from inflight.server.tracing.request_trace import passed, trace_of

_STREAM: dict[str, Any] = {"text/event-stream": {}}  # readers take it as text, or as its events


def generation_routes(service: Service, kept: Callable[[], KeptResponses] | None = None) -> Routes:
    """Return the routes of all endpoints that generate. kept: where responses are stored."""
    routes, calls = Routes("generation"), _Calls(service, kept)
    for name in GENERATION:
        add_endpoint(routes, name, calls.respond, _STREAM)
    return routes


class _Calls:
    """Read calls, hand them to the service, and make their responses."""

    def __init__(self, service: Service, kept: Callable[[], KeptResponses] | None) -> None:
        self._service, self._kept = service, kept
        self._stored = None if kept is None else StoredConversations(kept, int(service.settings.max_body_mb * 2**20))

    async def respond(self, name: EndpointName, request: Request) -> Response:
        """Return the response of a call whose body is still to be read. Raises ApiError."""
        try:
            call, borrowed = await self._read(request, name, tenant_of(request))
        except ClientGone:
            return Response(status_code=GONE)
        request.state.body_lease.release()
        request.state.told = True  # from here on the service tells how it ended
        opening = self._service.open(call, borrowed, keep=self._keeping(call))
        try:
            opened = await (until_gone(request.receive, opening, asyncio.Event()) if call.has_grammar else opening)
        except ClientGone:
            return Response(status_code=GONE)
        if (trace := trace_of(request.scope)) is not None:
            trace.generation = opened.generation
        return EventStreamResponse(opened, self._service.settings.keep_alive) if call.stream else WholeAnswer(opened)

    async def _read(self, request: Request, name: EndpointName, tenant: Tenant) -> tuple[Call, Borrowed]:
        """Keeps nothing of the body. Who leaves is not read for, and no model waited for; of a short body for one that
        is there that would cost more than reading it."""
        body, hints = await body_bytes(request), hints_of(request.scope["headers"])
        passed(request.scope, "receive_body")
        if not is_long(body) and self._service.models.residency is None:
            return await self._lent_call(request, name, body, tenant, hints)
        return await until_gone(request.receive, self._lent_call(request, name, body, tenant, hints), asyncio.Event())

    async def _lent_call(
        self, request: Request, name: EndpointName, body: bytes, tenant: Tenant, hints: RouterHints
    ) -> tuple[Call, Borrowed]:
        borrowed = await self._service.borrow(name, body, tenant)
        passed(request.scope, "wait_for_model")
        try:
            return await self._call(borrowed.served, request, name, body, tenant, hints), borrowed
        except BaseException:
            borrowed.release()
            raise

    async def _call(
        self, served: Served, request: Request, name: EndpointName, body: bytes, tenant: Tenant, hints: RouterHints
    ) -> Call:
        lease, history = request.state.body_lease, NOT_STORED
        if self._stored is not None and GENERATION[name].continued is not None:
            body = await self._stored.with_named_items(body, tenant, lease)
            history = await self._stored.history_of(body, tenant, lease)
        prepared = await served.preprocessing.prepare(name, body, lease.owner, history)
        assert not isinstance(prepared, PreparedAnswer), "generation is the engine's"
        note_ignored(request.scope, prepared.ignored)
        call = await served.translator.call_offloaded(prepared, tenant, hints=hints)
        note_max_tokens(request.scope, call, served.max_model_len)
        passed(request.scope, "preprocess")
        if (trace := trace_of(request.scope)) is not None:
            trace.asks(call, served.translator.now())
        return call

    def _keeping(self, call: Call) -> Keep | None:
        if self._kept is None or not call.kept_items:
            return None
        responses = self._kept()
        return lambda answer: responses.keep(call.tenant, call.call_id, answer, call.kept_items)
