"""Serve /livez, /readyz, /health, /version and /metrics, open to all clients: they show nothing of requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, Literal, TypeVar

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from inflight.counted import counted
from inflight.server.asgi import json_of
from inflight.server.ingress.guard import HEALTH
from inflight.server.routes import Routes, any_errors
from inflight.server.service import Service


class Health(Struct, kw_only=True):
    """The server's state.

    Attributes:
        status: loading (also while an engine that ended is started again), ready, draining or failed.
        detail: A sentence about it.
        calls: In flight, in all API processes.
    """

    status: Literal["loading", "ready", "draining", "failed"]
    detail: str
    calls: int


class Live(Struct, kw_only=True):
    """Whether the process answers; /readyz says whether it takes calls."""

    status: Literal["live", "failed"]


class Version(Struct, kw_only=True):
    version: str


Metrics = Callable[[], Awaitable[tuple[bytes, str]]]  # text and content type


def state_routes(service: Service, metrics: Metrics, version: str) -> Routes:
    routes, rendered = Routes("operation", needs_key=False), Rendering(metrics)
    not_ready = {"503": (Health, "Loading, draining or failed")}

    async def health(_: Request) -> Response:
        """200 when new work is taken, else 503 with the state and its reason."""
        models, calls = service.loaded, service.counts.everywhere
        stopped = None if models is None else models.stopped
        if stopped is not None:
            return json_of(Health(status="failed", detail=stopped, calls=calls), 503)
        detail = {"ready": f"{counted(calls, 'call')} in flight", "draining": f"{counted(calls, 'call')} left"}
        shown = Health(status=service.state, detail=detail.get(service.state, service.doing), calls=calls)
        return json_of(shown, 200 if service.state == "ready" else 503)

    for method, path in (*(("GET", one) for one in HEALTH), ("POST", "/ping")):
        routes.add(method, path, health, result=Health, result_is="Ready", errors=not_ready)

    @routes.get("/livez", result=Live, result_is="Live", errors={"503": (Live, "Failed")})
    async def live(_: Request) -> Response:
        """200 while the server works or starts, 503 once it has failed and ends."""
        failed = service.state == "failed"
        return json_of(Live(status="failed" if failed else "live"), 503 if failed else 200)

    @routes.get("/version", result=Version)
    async def server_version(_: Request) -> Response:
        """The server's version."""
        return json_of(Version(version=version))

    @routes.get("/metrics", content={"text/plain": {"type": "string"}}, errors=any_errors())
    async def page(_: Request) -> Response:
        """Prometheus text."""
        text, content_type = await rendered()
        return Response(text, media_type=content_type)

    return routes


T = TypeVar("T")

SHARE = 0.25  # of the time that may go into one page, however often it is asked for


class Rendering(Generic[T]):
    """Renders a page for all requests that came before the rendering began."""

    def __init__(self, render: Callable[[], Awaitable[T]]):
        self._render = render
        self._next: asyncio.Task[T] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._not_before = 0.0

    async def __call__(self) -> T:
        if self._next is None:
            self._next = asyncio.ensure_future(self._rendered())
        return await asyncio.shield(self._next)

    async def _rendered(self) -> T:
        async with self._one_at_a_time:
            await asyncio.sleep(self._not_before - time.monotonic())
            self._next = None  # who comes from here on is too late for this one
            began = time.monotonic()
            try:
                return await self._render()
            finally:
                ended = time.monotonic()
                self._not_before = ended + (ended - began) * (1 / SHARE - 1)
