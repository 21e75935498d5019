"""/v1/models/load and /v1/models/unload: which of several models are in memory, as an operator wants it; and the same
under the paths that llama.cpp's router has.

Knows who may ask; what may be loaded beside what, the pool knows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fastapi import APIRouter, Depends, Request, Response

from inflight.server import answers
from inflight.server.bodies.residency import MODEL, ModelBody
from inflight.server.endpoints.models import residency_of
from inflight.server.endpoints.operators import check_operator
from inflight.server.errors import invalid
from inflight.server.json import JsonResponse, body_bytes, body_of, documented
from inflight.server.model_status import ModelStatus
from inflight.server.served import ModelResidency
from inflight.server.service import Service
from inflight.server.tenants import Tenant

LOAD, UNLOAD = "/v1/models/load", "/v1/models/unload"


def residency_routes(service: Service, tenant_of: Callable[..., Tenant]) -> APIRouter:
    routes = APIRouter(tags=["model"])

    async def load(request: Request, tenant: Tenant = Depends(tenant_of)) -> Response:
        """Loads a model though nobody calls it; answers when it is in memory."""
        residency, name = await asked(request, tenant)
        return _told(await residency.load(name))

    async def unload(request: Request, tenant: Tenant = Depends(tenant_of)) -> Response:
        """Unloads a model as soon as its calls have ended; answers at once. The next call loads it again."""
        residency, name = await asked(request, tenant)
        return _told(residency.unload(name))

    async def asked(request: Request, tenant: Tenant) -> tuple[ModelResidency, str]:
        """Raises ApiError."""
        check_operator(tenant, "load and unload models")
        body, residency = MODEL.decode(await body_bytes(request)), service.models.residency
        if residency is None:
            raise invalid("This server has one model, which is always loaded; --models has several.", "model")
        return residency, body.model

    for path, answer in ((LOAD, load), (UNLOAD, unload)):
        add = partial(
            routes.add_api_route,
            endpoint=answer,
            methods=["POST"],
            responses=documented(answers.ModelState),
            response_class=JsonResponse,
            openapi_extra=body_of(ModelBody),
        )
        add(path)
        add(path.removeprefix("/v1"), include_in_schema=False)
    return routes


def _told(status: ModelStatus) -> JsonResponse:
    return JsonResponse({"success": True, "model": status.name, "state": status.state, **residency_of(status)})
