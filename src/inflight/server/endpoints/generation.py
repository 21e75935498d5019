"""/v1/completions and /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from inflight.server import answers
from inflight.server.asking import Asker, Call
from inflight.server.beside import beside, length_of
from inflight.server.bodies.chat import ChatBody
from inflight.server.bodies.common import GenerationBody
from inflight.server.bodies.completions import CompletionBody
from inflight.server.json import JsonResponse, documented
from inflight.server.service import GONE, Service
from inflight.server.sse import ClientGone, EventStreamResponse, until_gone
from inflight.server.tenants import Tenant

_STREAM: dict[str, Any] = {"text/event-stream": {"schema": {"type": "string"}}}


def generation_routes(service: Service, tenant_of: Callable[..., Tenant]) -> APIRouter:
    routes = APIRouter(tags=["generation"])

    @routes.post("/v1/completions", responses=documented(answers.Completion, _STREAM), response_class=JsonResponse)
    async def completions(body: CompletionBody, request: Request, tenant: Tenant = Depends(tenant_of)) -> Response:
        """Continue text. OpenAI's legacy endpoint, with vLLM's extra fields."""
        return await respond(request, body, lambda asker: asker.completion(body, tenant))

    @routes.post(
        "/v1/chat/completions", responses=documented(answers.ChatCompletion, _STREAM), response_class=JsonResponse
    )
    async def chat(body: ChatBody, request: Request, tenant: Tenant = Depends(tenant_of)) -> Response:
        """Answer a conversation."""
        return await respond(request, body, lambda asker: asker.chat(body, tenant))

    async def respond(request: Request, body: GenerationBody, ask: Callable[[Asker], Call]) -> Response:
        asker = service.served.asker
        asker.check_model(body.model)
        length = length_of(getattr(body, "prompt", None), getattr(body, "messages", None))
        call = await beside(length, lambda: ask(asker))
        request.state.told = True  # from here on the service tells how it ended
        opened = await service.open(call)
        if call.stream:
            return EventStreamResponse(opened, service.settings.keep_alive)
        try:
            return JsonResponse(await until_gone(request.receive, opened.answer(), opened.generation.given_up))
        except ClientGone:
            return Response(status_code=GONE)

    return routes
