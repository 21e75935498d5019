"""/v1/models/load and /v1/models/unload: which of several models are in memory, as an operator wants it; and the same
under the paths that llama.cpp's router has.

Knows who may ask; what may be loaded beside what, the pool knows.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from inflight.server import answers
from inflight.server.bodies.residency import MODEL, ModelBody
from inflight.server.endpoints.models import residency_of
from inflight.server.endpoints.operators import check_operator
from inflight.server.errors import invalid
from inflight.server.json import JsonResponse, body_bytes
from inflight.server.model_status import ModelStatus
from inflight.server.routes import Routes, any_errors, tenant_of
from inflight.server.served import ModelResidency
from inflight.server.service import Service

LOAD, UNLOAD = "/v1/models/load", "/v1/models/unload"


def residency_routes(service: Service) -> Routes:
    routes = Routes("model")

    async def load(request: Request) -> Response:
        """Loads a model though nobody calls it; answers when it is in memory."""
        residency, name = await asked(request)
        return _told(await residency.load(name))

    async def unload(request: Request) -> Response:
        """Unloads a model as soon as its calls have ended; answers at once. The next call loads it again."""
        residency, name = await asked(request)
        return _told(residency.unload(name))

    async def asked(request: Request) -> tuple[ModelResidency, str]:
        """Raises ApiError."""
        check_operator(tenant_of(request), "load and unload models")
        body, residency = MODEL.decode(await body_bytes(request)), service.models.residency
        if residency is None:
            raise invalid("This server has one model, which is always loaded; --models has several.", "model")
        return residency, body.model

    documented = {"body": ModelBody, "result": answers.ModelState, "result_is": "The answer", "errors": any_errors()}
    for path, answer in ((LOAD, load), (UNLOAD, unload)):
        routes.add("POST", path, answer, **documented)
        routes.add("POST", path.removeprefix("/v1"), answer, is_documented=False)
    return routes


def _told(status: ModelStatus) -> JsonResponse:
    return JsonResponse({"success": True, "model": status.name, "state": status.state, **residency_of(status)})
