"""/health, /version and /metrics: for those who run the server. Open to all, for they tell nothing of what is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Response

from inflight.counted import counted
from inflight.server import answers
from inflight.server.json import JsonResponse, documented
from inflight.server.rendering import Rendering
from inflight.server.service import Service

Metrics = Callable[[], Awaitable[tuple[bytes, str]]]  # text and content type


def state_routes(service: Service, metrics: Metrics, version: str) -> APIRouter:
    routes, rendered = APIRouter(tags=["operation"]), Rendering(metrics)
    health_documented: dict[int | str, dict[str, Any]] = {
        200: {"model": answers.Health, "description": "Ready"},
        503: {"model": answers.Health, "description": "Loading, draining or failed"},
    }

    @routes.get("/health", responses=health_documented)
    async def health() -> JsonResponse:
        """200 when new work is taken; 503 with what is being done when not."""
        models = service.loaded
        stopped = None if models is None else models.stopped
        if stopped is not None:
            return JsonResponse({"status": "failed", "detail": stopped}, 503)
        calls = service.counts.everywhere
        detail = {"ready": f"{counted(calls, 'call')} under way", "draining": f"{counted(calls, 'call')} left"}
        body = {"status": service.state, "detail": detail.get(service.state, service.doing)}
        return JsonResponse(body, 200 if service.state == "ready" else 503)

    @routes.get("/version", responses={200: {"model": answers.Version}})
    async def tell_version() -> JsonResponse:
        return JsonResponse({"version": version})

    @routes.get(
        "/metrics",
        responses={**documented(answers.Version), 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
        response_class=Response,
    )
    async def page() -> Response:
        """Prometheus text."""
        text, content_type = await rendered()
        return Response(text, media_type=content_type)

    return routes
