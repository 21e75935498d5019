"""HTTP of the registry's endpoints: a body is read and prepared, a call opened, its answer sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from inflight.server.asgi import body_bytes, note_ignored, note_max_tokens
from inflight.server.common.prepared import Call, EndpointName, PreparedAnswer, PreparedTexts
from inflight.server.errors import error_type
from inflight.server.generating import GONE, Keep
from inflight.server.openai.responses.store import NOT_STORED, Responses
from inflight.server.openai.responses.stored_input import StoredConversations
from inflight.server.preprocessing.pool import is_long
from inflight.server.registry import ENDPOINTS
from inflight.server.rendering import rendered_json
from inflight.server.router_hints import hints_of
from inflight.server.routes import Routes, any_errors, tenant_of
from inflight.server.sending import ClientGone, EventStreamResponse, PreparedResponse, WholeAnswer, until_gone
from inflight.server.served import ModelLease
from inflight.server.service import Service
from inflight.server.tenants import Tenant
from inflight.server.tracing.request_trace import passed, trace_of


def endpoint_routes(service: Service, kept: Callable[[], Responses] | None = None) -> tuple[Routes, Routes]:
    """Return the routes of endpoints that ask the engine, and of the others. kept: where responses are stored."""
    generation, others, calls = Routes("generation"), Routes("model"), _Calls(service, kept)
    for name, one in ENDPOINTS.items():
        routes, answer = (generation, calls.respond) if one.generates else (others, calls.respond_without_engine)
        routes.add(
            "POST",
            one.path,
            partial(answer, name),
            name=one.operation,
            about=one.about,
            result=one.result,
            result_is="The answer",
            content={one.stream_type: {}} if one.generates else {},  # readers take it as text, or as its events
            body=one.body.kind,
            errors=any_errors(error_type(one.path)),
        )
    return generation, others


class _Calls:
    def __init__(self, service: Service, kept: Callable[[], Responses] | None) -> None:
        self._service, self._kept = service, kept
        self._stored = None if kept is None else StoredConversations(kept, int(service.settings.max_body_mb * 2**20))

    async def respond(self, name: EndpointName, request: Request) -> Response:
        """Return the response of a call to the engine. Raises ApiError."""
        try:
            read = await self._read(request, name)
        except ClientGone:
            return Response(status_code=GONE)
        request.state.body_lease.release()
        if isinstance(read, bytes):
            return Response(read, media_type="application/json")
        call, model_lease = read
        request.state.is_logged = True  # from here on the service logs how it ended
        opening = self._service.open(call, model_lease, keep=self._keeping(call))
        try:
            generation = await (until_gone(request.receive, opening, asyncio.Event()) if call.has_grammar else opening)
        except ClientGone:
            return Response(status_code=GONE)
        if (trace := trace_of(request.scope)) is not None:
            trace.generation = generation
        if call.stream:
            return EventStreamResponse(generation, self._service.settings.keep_alive, ENDPOINTS[name].stream_type)
        return WholeAnswer(generation)

    async def respond_without_engine(self, name: EndpointName, request: Request) -> Response:
        """Return the response of an endpoint whose answer needs no engine. Raises ApiError."""
        tenant = tenant_of(request)
        return PreparedResponse(self._service.entered(tenant), partial(self._prepared, request, name, tenant))

    async def _read(self, request: Request, name: EndpointName) -> tuple[Call, ModelLease] | bytes:
        """Read the body and make its call, unless the client leaves; of a short body for a loaded model, watching the
        client would cost more than reading it."""
        body = await body_bytes(request)
        passed(request.scope, "receive_body")
        watches = is_long(body) or self._service.models.residency is not None
        reading = self._call_of(request, name, body)
        return await (until_gone(request.receive, reading, asyncio.Event()) if watches else reading)

    async def _call_of(self, request: Request, name: EndpointName, body: bytes) -> tuple[Call, ModelLease] | bytes:
        """Return a call and its model; the answer to a body for which no engine is asked. Raises ApiError."""
        tenant, hints, began = tenant_of(request), hints_of(request.scope["headers"]), time.monotonic()
        residency, read = self._service.models.residency, ENDPOINTS[name].keep_alive
        keep = None if read is None or residency is None or not tenant.operator else read(body)
        if keep is not None and keep.unloaded and residency is not None:
            await residency.unload(keep.model)
            return keep.unloaded
        model_lease = await self._service.acquire(name, body, tenant, None if keep is None else keep.seconds)
        waited = time.monotonic() - began
        passed(request.scope, "wait_for_model")
        try:
            served, lease, history = model_lease.served, request.state.body_lease, NOT_STORED
            if self._stored is not None and ENDPOINTS[name].is_stored:
                body = await self._stored.with_named_items(body, tenant, lease)
                history = await self._stored.history_of(body, tenant, lease)
            prepared = await served.preprocessing.prepare(name, body, lease.owner, history)
            note_ignored(request.scope, prepared.ignored)
            if isinstance(prepared, PreparedAnswer):
                model_lease.release()
                return prepared.json
            call = await served.translator.call_without_blocking(
                prepared, tenant, own_id=request.state.call_id, hints=hints
            )
            call = call if read is None else replace(call, waited=waited)
            note_max_tokens(request.scope, call, served.max_model_len)
            passed(request.scope, "preprocess")
            if (trace := trace_of(request.scope)) is not None:
                trace.asks(call, served.translator.now())
            return call, model_lease
        except BaseException:
            model_lease.release()
            raise

    def _keeping(self, call: Call) -> Keep | None:
        if self._kept is None or not call.stored_items:
            return None
        responses = self._kept()
        return lambda answer: responses.store(call.tenant, call.call_id, answer, call.stored_items)

    async def _prepared(self, request: Request, name: EndpointName, tenant: Tenant) -> bytes:
        owner, body = request.state.body_lease.owner, await body_bytes(request)
        read_as, service = ENDPOINTS[name].renders or name, self._service
        waits = service.models.residency is not None
        acquiring = service.acquire(read_as, body)
        model_lease = await (until_gone(request.receive, acquiring, asyncio.Event()) if waits else acquiring)
        try:
            reading = model_lease.served.preprocessing.prepare(read_as, body, owner)
            prepared = await (until_gone(request.receive, reading, asyncio.Event()) if is_long(body) else reading)
            request.state.body_lease.release()
            note_ignored(request.scope, prepared.ignored)
            if isinstance(prepared, PreparedAnswer):
                return prepared.json
            assert not isinstance(prepared, PreparedTexts), "texts are not rendered"
            return await rendered_json(model_lease.served, prepared, tenant)
        finally:
            model_lease.release()
