"""/v1/completions and /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from inflight.server.call import Call, EndpointName
from inflight.server.endpoints.registry import GENERATION
from inflight.server.generating import Keep
from inflight.server.json import add_endpoint, body_bytes
from inflight.server.notices import note_ignored, note_max_tokens
from inflight.server.preprocessing.pool import is_long
from inflight.server.preprocessing.wire import PreparedAnswer
from inflight.server.responses.kept import NOT_STORED, KeptResponses
from inflight.server.responses.stored_conversations import StoredConversations
from inflight.server.router_hints import RouterHints, hints_of
from inflight.server.sending import ClientGone, EventStreamResponse, WholeAnswer, until_gone
from inflight.server.served import Borrowed, Served
from inflight.server.service import GONE, Service
from inflight.server.tenants import Tenant
from inflight.server.tracing.request_trace import passed, trace_of

_STREAM: dict[str, Any] = {"text/event-stream": {"schema": {}}}  # readers take it as text, or as its events


def generation_routes(
    service: Service, tenant_of: Callable[..., Tenant], kept: Callable[[], KeptResponses] | None = None
) -> APIRouter:
    """kept: where responses are stored."""
    routes = APIRouter(tags=["generation"])
    stored = None if kept is None else StoredConversations(kept, int(service.settings.max_body_mb * 2**20))

    async def respond(name: EndpointName, request: Request, tenant: Tenant = Depends(tenant_of)) -> Response:
        try:
            call, borrowed = await read(request, name, tenant)
        except ClientGone:
            return Response(status_code=GONE)
        request.state.body_lease.release()
        request.state.told = True  # from here on the service tells how it ended
        opening = service.open(call, borrowed, keep=keeping(call))
        try:
            opened = await (until_gone(request.receive, opening, asyncio.Event()) if call.has_grammar else opening)
        except ClientGone:
            return Response(status_code=GONE)
        if (trace := trace_of(request.scope)) is not None:
            trace.generation = opened.generation
        return EventStreamResponse(opened, service.settings.keep_alive) if call.stream else WholeAnswer(opened)

    async def read(request: Request, name: EndpointName, tenant: Tenant) -> tuple[Call, Borrowed]:
        """Keeps nothing of the body. Who leaves is not read for, and no model waited for; of a short body for one that
        is there that would cost more than reading it."""
        body, hints = await body_bytes(request), hints_of(request.scope["headers"])
        passed(request.scope, "receive_body")
        if not is_long(body) and service.models.residency is None:
            return await lent_call_of(request, name, body, tenant, hints)
        return await until_gone(request.receive, lent_call_of(request, name, body, tenant, hints), asyncio.Event())

    async def lent_call_of(
        request: Request, name: EndpointName, body: bytes, tenant: Tenant, hints: RouterHints
    ) -> tuple[Call, Borrowed]:
        borrowed = await service.borrow(name, body, tenant)
        passed(request.scope, "wait_for_model")
        try:
            return await call_of(borrowed.served, request, name, body, tenant, hints), borrowed
        except BaseException:
            borrowed.release()
            raise

    async def call_of(
        served: Served, request: Request, name: EndpointName, body: bytes, tenant: Tenant, hints: RouterHints
    ) -> Call:
        lease, history = request.state.body_lease, NOT_STORED
        if stored is not None and GENERATION[name].continued is not None:
            body = await stored.with_named_items(body, tenant, lease)
            history = await stored.history_of(body, tenant, lease)
        prepared = await served.preprocessing.prepare(name, body, lease.owner, history)
        assert not isinstance(prepared, PreparedAnswer), "generation is the engine's"
        note_ignored(request.scope, prepared.ignored)
        call = await served.translator.call_offloaded(prepared, tenant, hints=hints)
        note_max_tokens(request.scope, call, served.max_model_len)
        passed(request.scope, "preprocess")
        if (trace := trace_of(request.scope)) is not None:
            trace.asks(call, served.translator.now())
        return call

    def keeping(call: Call) -> Keep | None:
        if kept is None or not call.kept_items:
            return None
        responses = kept()
        return lambda answer: responses.keep(call.tenant, call.call_id, answer, call.kept_items)

    for name in GENERATION:
        add_endpoint(routes, name, partial(respond, name), _STREAM)
    return routes
