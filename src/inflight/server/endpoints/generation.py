"""/v1/completions and /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from inflight.server.call import Call, EndpointName
from inflight.server.endpoints.registry import GENERATION
from inflight.server.json import add_endpoint, body_bytes
from inflight.server.preprocessing.pool import SHORT_BYTES
from inflight.server.preprocessing.wire import PreparedAnswer
from inflight.server.sending import ClientGone, EventStreamResponse, WholeAnswer, until_gone
from inflight.server.service import GONE, Service
from inflight.server.tenants import Tenant

_STREAM: dict[str, Any] = {"text/event-stream": {"schema": {}}}  # readers take it as text, or as its events


def generation_routes(service: Service, tenant_of: Callable[..., Tenant]) -> APIRouter:
    routes = APIRouter(tags=["generation"])

    async def respond(name: EndpointName, request: Request, tenant: Tenant = Depends(tenant_of)) -> Response:
        try:
            call = await read(request, name, tenant)
        except ClientGone:
            return Response(status_code=GONE)
        request.state.body_lease.release()
        request.state.told = True  # from here on the service tells how it ended
        opened = await service.open(call)
        return EventStreamResponse(opened, service.settings.keep_alive) if call.stream else WholeAnswer(opened)

    async def read(request: Request, name: EndpointName, tenant: Tenant) -> Call:
        """Keeps nothing of the body. Who leaves is not read for; of a short body that would cost more than reading
        it."""
        body = await body_bytes(request)
        reading = call_of(request, name, body, tenant)
        return await (reading if len(body) <= SHORT_BYTES else until_gone(request.receive, reading, asyncio.Event()))

    async def call_of(request: Request, name: EndpointName, body: bytes, tenant: Tenant) -> Call:
        served = service.served
        prepared = await served.preprocessing.prepare(name, body, request.state.body_lease.owner)
        assert not isinstance(prepared, PreparedAnswer), "generation is the engine's"
        return await served.translator.call_offloaded(prepared, tenant)

    for name in GENERATION:
        add_endpoint(routes, name, partial(respond, name), _STREAM)
    return routes
