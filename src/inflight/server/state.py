"""/health, /version and /metrics: for those who run the server. Open to all: they show nothing of requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from inflight.counted import counted
from inflight.server.json import json_of
from inflight.server.rendering import Rendering
from inflight.server.routes import Routes, any_errors
from inflight.server.service import Service


class Health(Struct, kw_only=True):
    """status: loading, ready, draining or failed; detail says what is being done, or why."""

    status: str
    detail: str


class Version(Struct, kw_only=True):
    version: str


Metrics = Callable[[], Awaitable[tuple[bytes, str]]]  # text and content type


def state_routes(service: Service, metrics: Metrics, version: str) -> Routes:
    routes, rendered = Routes("operation", needs_key=False), Rendering(metrics)
    not_ready = {"503": (Health, "Loading, draining or failed")}

    @routes.get("/health", result=Health, result_is="Ready", errors=not_ready)
    async def health(_: Request) -> Response:
        """200 when new work is taken; 503 with what is being done when not."""
        models = service.loaded
        stopped = None if models is None else models.stopped
        if stopped is not None:
            return json_of(Health(status="failed", detail=stopped), 503)
        calls = service.counts.everywhere
        detail = {"ready": f"{counted(calls, 'call')} in flight", "draining": f"{counted(calls, 'call')} left"}
        shown = Health(status=service.state, detail=detail.get(service.state, service.doing))
        return json_of(shown, 200 if service.state == "ready" else 503)

    @routes.get("/version", result=Version)
    async def tell_version(_: Request) -> Response:
        return json_of(Version(version=version))

    @routes.get("/metrics", content={"text/plain": {"type": "string"}}, errors=any_errors())
    async def page(_: Request) -> Response:
        """Prometheus text."""
        text, content_type = await rendered()
        return Response(text, media_type=content_type)

    return routes
