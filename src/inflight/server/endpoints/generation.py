"""/v1/completions and /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from inflight.server import answers
from inflight.server.bodies.chat import ChatBody
from inflight.server.bodies.completions import CompletionBody
from inflight.server.json import JsonResponse, body_bytes, body_of, documented
from inflight.server.preprocessing.pool import SHORT_BYTES
from inflight.server.preprocessing.wire import Kind, PreparedAnswer
from inflight.server.sending import ClientGone, WholeAnswer, until_gone
from inflight.server.service import GONE, Service
from inflight.server.sse import EventStreamResponse
from inflight.server.tenants import Tenant
from inflight.server.translating import Call

_STREAM: dict[str, Any] = {"text/event-stream": {"schema": {"type": "string"}}}


def generation_routes(service: Service, tenant_of: Callable[..., Tenant]) -> APIRouter:
    routes = APIRouter(tags=["generation"])

    @routes.post(
        "/v1/completions",
        responses=documented(answers.Completion, _STREAM),
        response_class=JsonResponse,
        openapi_extra=body_of(CompletionBody),
    )
    async def completions(request: Request, tenant: Tenant = Depends(tenant_of)) -> Response:
        """Continue text. OpenAI's legacy endpoint, with vLLM's extra fields."""
        return await respond(request, "completion", tenant)

    @routes.post(
        "/v1/chat/completions",
        responses=documented(answers.ChatCompletion, _STREAM),
        response_class=JsonResponse,
        openapi_extra=body_of(ChatBody),
    )
    async def chat(request: Request, tenant: Tenant = Depends(tenant_of)) -> Response:
        """Answer a conversation."""
        return await respond(request, "chat", tenant)

    async def respond(request: Request, kind: Kind, tenant: Tenant) -> Response:
        try:
            call = await read(request, kind, tenant)
        except ClientGone:
            return Response(status_code=GONE)
        request.state.body_lease.release()
        request.state.told = True  # from here on the service tells how it ended
        opened = await service.open(call)
        return EventStreamResponse(opened, service.settings.keep_alive) if call.stream else WholeAnswer(opened)

    async def read(request: Request, kind: Kind, tenant: Tenant) -> Call:
        """Keeps nothing of the body. Who leaves is not read for; of a short body that would cost more than reading
        it."""
        body = await body_bytes(request)
        reading = call_of(request, kind, body, tenant)
        return await (reading if len(body) <= SHORT_BYTES else until_gone(request.receive, reading, asyncio.Event()))

    async def call_of(request: Request, kind: Kind, body: bytes, tenant: Tenant) -> Call:
        served = service.served
        prepared = await served.preprocessing.prepare(kind, body, request.state.body_lease.owner)
        assert not isinstance(prepared, PreparedAnswer), "generation is the engine's"
        return await served.translator.call_beside(prepared, tenant)

    return routes
