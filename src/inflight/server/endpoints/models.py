"""/v1/models, /tokenize and /detokenize: what is served, and how it cuts text."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from inflight.server import answers
from inflight.server.call import EndpointName
from inflight.server.endpoints.registry import ENDPOINTS, GENERATION
from inflight.server.errors import ApiError
from inflight.server.json import JsonResponse, add_endpoint, body_bytes, documented
from inflight.server.preprocessing.bounds import check_model
from inflight.server.preprocessing.wire import PreparedAnswer
from inflight.server.sending import PreparedResponse
from inflight.server.service import Served, Service
from inflight.server.tenants import Tenant


def model_routes(service: Service, tenant_of: Callable[..., Tenant]) -> APIRouter:
    routes = APIRouter(tags=["model"], dependencies=[Depends(tenant_of)])
    started = int(time.time())

    @routes.get("/v1/models", responses=documented(answers.Models))
    async def models(tenant: Tenant = Depends(tenant_of)) -> JsonResponse:
        served = service.served
        data = [_described(name, served, started) for name in _names(served, tenant)]
        return JsonResponse({"object": "list", "data": data})

    @routes.get("/v1/models/{name:path}", responses=documented(answers.Model))
    async def model(name: str, tenant: Tenant = Depends(tenant_of)) -> JsonResponse:
        served = service.served
        return JsonResponse(_described(check_model(name, _names(served, tenant)), served, started))

    @routes.get("/tokenizer_info", responses=documented(answers.TokenizerInfo))
    async def tokenizer_info() -> JsonResponse:
        """What the model's tokenizer is, as far as it changes how text is cut."""
        served = service.served
        tokenizer = served.tokenizer
        if tokenizer is None:
            raise ApiError(404, "This model has no tokenizer; use token ids.", code="not_found")
        named = {f"{name}_token": None for name in ("bos", "eos", "pad", "unk")}
        about = {"tokenizer_class": "PreTrainedTokenizerFast", "vocab_size": tokenizer.vocab_size}
        return JsonResponse({**named, **tokenizer.special_tokens, **about, "model_max_length": served.max_model_len})

    async def respond(name: EndpointName, request: Request, tenant: Tenant = Depends(tenant_of)) -> Response:
        return PreparedResponse(service.entered(tenant), partial(made, service.served, request, name))

    async def made(served: Served, request: Request, name: EndpointName) -> bytes:
        owner = request.state.body_lease.owner
        answer = await served.preprocessing.prepare(name, await body_bytes(request), owner)
        request.state.body_lease.release()
        assert isinstance(answer, PreparedAnswer), "nothing is left to do"
        return answer.json

    for name in ENDPOINTS:
        if name not in GENERATION:
            add_endpoint(routes, name, partial(respond, name))
    return routes


def _names(served: Served, tenant: Tenant) -> tuple[str, ...]:
    """Of what the tenant may name: the model, and adapters."""
    adapters = served.translator.adapters.names
    return (*served.translator.models, *(one for one in adapters if tenant.may_name(one)))


def _described(name: str, served: Served, created: int) -> dict[str, Any]:
    model, adapter = served.translator.models[0], served.translator.adapters.named(name)
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "inflight",
        "root": model if adapter is None else adapter.path,
        "parent": None if adapter is None else model,
        "max_model_len": served.max_model_len,
        "capabilities": _capabilities(served),
    }


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
