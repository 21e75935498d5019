"""ASGI middleware that begins a trace for each request to a model, and sends its spans after the last byte."""

from __future__ import annotations

from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inflight.server.asgi import header, state_of
from inflight.server.errors import ApiError
from inflight.server.generating import GONE
from inflight.server.registry import BY_PATH
from inflight.server.tracing.call_spans import SpanFacts, request_span
from inflight.server.tracing.request_trace import RequestTrace

PARENT = ("traceparent", "tracestate")  # headers by which W3C's Trace Context names the caller's span


class SpanSink(Protocol):
    def send(self, facts: SpanFacts, parent: dict[str, str], failed: bool) -> None:
        """Send a span. parent: the headers PARENT that the request has. failed: by a fault of the server."""


class TraceRequests:
    def __init__(self, app: ASGIApp, sink: SpanSink):
        self._app = app
        self._sink = sink

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = BY_PATH.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if endpoint is None:
            return await self._app(scope, receive, send)
        trace = state_of(scope)["trace"] = RequestTrace(endpoint)
        status = GONE

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception:
            status = 500
            raise
        finally:
            self._send_spans(scope, trace, status)

    def _send_spans(self, scope: Scope, trace: RequestTrace, status: int) -> None:
        state, generation = state_of(scope), trace.generation
        refused = state.get("error")
        error = refused if isinstance(refused, ApiError) else None if generation is None else generation.error
        facts = request_span(trace, trace.now(), status, state["request_id"], error)
        given = {name: header(scope, name.encode("ascii")) for name in PARENT}
        parent = {name: value.decode("latin-1") for name, value in given.items() if value is not None}
        self._sink.send(facts, parent, status >= 500 or (error is not None and error.status >= 500))
