"""/v1/models, /tokenize, /detokenize and the like: what is served, how it cuts text, and what it makes of bodies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from inflight.server import answers
from inflight.server.call import EndpointName
from inflight.server.endpoints.registry import ENDPOINTS, GENERATION
from inflight.server.endpoints.registry_routes import add_endpoint
from inflight.server.errors import ApiError
from inflight.server.json import JsonResponse, body_bytes
from inflight.server.model_status import ModelStatus
from inflight.server.notices import note_ignored
from inflight.server.preprocessing.bounds import check_model
from inflight.server.preprocessing.pool import is_long
from inflight.server.preprocessing.wire import PreparedAnswer, PreparedTexts
from inflight.server.rendered_requests import rendered_json
from inflight.server.routes import Routes, any_errors, read_query, tenant_of
from inflight.server.sending import ClientGone, PreparedResponse, until_gone
from inflight.server.served import Borrowed, ListedModel, Served
from inflight.server.service import GONE, Service
from inflight.server.tenants import Tenant


class TokenizerQuery(Struct):
    model: str | None = None


def model_routes(service: Service) -> Routes:
    routes = Routes("model")
    started = int(time.time())
    answered = {"result_is": "The answer", "errors": any_errors()}

    async def models(request: Request) -> Response:
        data = [_described(one, started) for one in _shown(service, tenant_of(request))]
        return JsonResponse({"object": "list", "data": data})

    routes.add("GET", "/v1/models", models, result=answers.Models, **answered)
    routes.add("GET", "/v1/models/", models, is_documented=False)  # else it would name a model ""

    @routes.get("/v1/models/{name:path}", result=answers.Model, **answered)
    async def model(request: Request) -> Response:
        shown = {one.name: one for one in _shown(service, tenant_of(request))}
        name = check_model(request.path_params["name"], tuple(shown))
        return JsonResponse(_described(shown[name], started))

    @routes.get("/tokenizer_info", query=TokenizerQuery, result=answers.TokenizerInfo, **answered)
    async def tokenizer_info(request: Request) -> Response:
        """Describe the model's tokenizer, as far as it changes how text is cut. model: where there are several."""
        model = read_query(request, TokenizerQuery).model
        with service.entered(tenant_of(request)):
            try:
                borrowed = await lent(request, service.models.borrow(model))
            except ClientGone:
                return Response(status_code=GONE)
            try:
                return JsonResponse(_of_tokenizer(borrowed.served))
            finally:
                borrowed.release()

    async def respond(name: EndpointName, request: Request) -> Response:
        tenant = tenant_of(request)
        return PreparedResponse(service.entered(tenant), partial(made, request, name, tenant))

    async def lent(request: Request, borrowing: Coroutine[Any, Any, Borrowed]) -> Borrowed:
        """Wait for the model, unless the client leaves. Raises ClientGone, ApiError."""
        if service.loaded is None or service.loaded.residency is None:
            return await borrowing
        return await until_gone(request.receive, borrowing, asyncio.Event())

    async def made(request: Request, name: EndpointName, tenant: Tenant) -> bytes:
        owner, body = request.state.body_lease.owner, await body_bytes(request)
        read_as = ENDPOINTS[name].renders or name
        borrowed = await lent(request, service.borrow(read_as, body))
        try:
            reading = borrowed.served.preprocessing.prepare(read_as, body, owner)
            prepared = await (until_gone(request.receive, reading, asyncio.Event()) if is_long(body) else reading)
            request.state.body_lease.release()
            note_ignored(request.scope, prepared.ignored)
            if isinstance(prepared, PreparedAnswer):
                return prepared.json
            assert not isinstance(prepared, PreparedTexts), "of whole texts nothing is rendered"
            return await rendered_json(borrowed.served, prepared, tenant)
        finally:
            borrowed.release()

    for name in ENDPOINTS:
        if name not in GENERATION:
            add_endpoint(routes, name, respond)
    return routes


def _shown(service: Service, tenant: Tenant) -> list[ListedModel]:
    """Return the models and adapters that the tenant may name."""
    return [one for one in service.models.listed() if one.adapter is None or tenant.may_name(one.name)]


def _described(one: ListedModel, created: int) -> dict[str, Any]:
    served, status = one.served, one.status
    described = {
        "id": one.name,
        "object": "model",
        "created": created,
        "owned_by": "inflight",
        "root": one.model if one.adapter is None else one.adapter.path,
        "parent": None if one.adapter is None else one.model,
        "max_model_len": None if served is None else served.max_model_len,
        "capabilities": None if served is None else _capabilities(served),
        "lanes": None if served is None else _lanes(served),
        "state": "loaded" if status is None else status.state,
    }
    return described if status is None else described | {"residency": residency_of(status)}


def residency_of(status: ModelStatus) -> dict[str, Any]:
    return {
        "memory_bytes": status.nbytes,
        "pinned": status.is_pinned,
        "calls": status.under_way,
        "waiting": status.waiting,
        "seconds_until_loaded": None if status.state == "failed" else round(status.seconds, 1),
        "error": status.failure or None,
    }


def _of_tokenizer(served: Served) -> dict[str, Any]:
    """Raises ApiError."""
    tokenizer = served.tokenizer
    if tokenizer is None:
        raise ApiError(404, "This model has no tokenizer; use token ids.", code="not_found")
    named = {f"{name}_token": None for name in ("bos", "eos", "pad", "unk")}
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "vocab_size": tokenizer.vocab_size}
    return {**named, **tokenizer.special_tokens, **about, "model_max_length": served.max_model_len}


def _lanes(served: Served) -> list[dict[str, Any]]:
    return [
        {"name": one.name, "background": one.background, "takes_priority": one.takes_priority}
        for one in served.translator.lanes
    ]


def _capabilities(served: Served) -> dict[str, bool]:
    parsers, pooler = served.translator.parsers, served.translator.pooler
    if not served.generates:
        parsers = None
    return {
        "completions": served.generates,
        "chat": served.generates and served.translator.encoder.can_chat,
        "tools": parsers is not None and parsers.names.tools is not None and served.translator.encoder.shows_tools,
        "reasoning": parsers is not None and parsers.reasoning_ends is not None,
        "structured_output": served.generates and served.keeps_grammars,
        "embeddings": pooler is not None and not pooler.labels,
        "scores": pooler is not None and len(pooler.labels) <= 1,
        "classes": pooler is not None and bool(pooler.labels),
    }
