"""/v1/load_lora_adapter and /v1/unload_lora_adapter: adapters that come and go while the server runs, as vLLM has it.

Knows who may ask (an operator's key, where there are keys) and where files may lie (--lora-dir): a path in a body reads
from this machine's disk. What an adapter is and whether it fits, the engine's names know (`frontend.adapter_names`).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from inflight.frontend.adapter_names import AdapterNameError, AdapterNames
from inflight.models.errors import ModelError
from inflight.server.bodies.adapters import LOAD_ADAPTER, UNLOAD_ADAPTER, LoadAdapterBody, UnloadAdapterBody
from inflight.server.endpoints.operators import check_operator
from inflight.server.errors import ApiError, invalid
from inflight.server.json import body_bytes
from inflight.server.routes import Routes, any_errors, tenant_of
from inflight.server.served import OneModel
from inflight.server.service import Service

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
_ANSWERS: dict[str, Any] = {"content": {"text/plain": {"type": "string"}}, "errors": any_errors()}


def adapter_routes(service: Service) -> Routes:
    routes, turn = Routes("model"), asyncio.Lock()
    folder = service.settings.lora_dir

    def adapters() -> AdapterNames:
        models = service.models
        if not isinstance(models, OneModel):
            raise invalid("Adapters of several models are named in the models file, as lora = [...].", "lora_name")
        return models.served.translator.adapters

    @routes.post(LOAD, body=LoadAdapterBody, **_ANSWERS)
    async def load(request: Request) -> Response:
        """An adapter that requests may name as their model from now on; its matrices are read when one does."""
        check_operator(tenant_of(request), "load and unload adapters")
        body = LOAD_ADAPTER.decode(await body_bytes(request))
        path = _within(folder, body)
        async with turn:  # two of one name are not both new
            try:
                await asyncio.to_thread(adapters().add, body.lora_name, path)
            except AdapterNameError as error:
                raise invalid(str(error), "lora_name") from None
            except ModelError as error:
                raise invalid(str(error), "lora_path") from None
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    @routes.post(UNLOAD, body=UnloadAdapterBody, **_ANSWERS)
    async def unload(request: Request) -> Response:
        """No request may name it any more; those under way go on with it."""
        check_operator(tenant_of(request), "load and unload adapters")
        body = UNLOAD_ADAPTER.decode(await body_bytes(request))
        try:
            adapters().remove(body.lora_name)
        except AdapterNameError as error:
            raise ApiError(404, str(error), param="lora_name", code="model_not_found") from None
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    return routes


def _within(folder: Path | None, body: LoadAdapterBody) -> Path:
    """Raises ApiError for a path that leads out of the folder."""
    if folder is None:
        raise ApiError(
            403,
            "This server loads no adapters while it runs; start it with --lora-dir, the folder that they may lie in.",
            code="adapters_not_loadable",
        )
    root = folder.resolve()
    try:
        path = (root / body.lora_path).resolve()
    except (OSError, RuntimeError, ValueError):  # links in a circle; a zero byte
        path = root.parent
    if not path.is_relative_to(root):
        raise invalid(f"lora_path leads out of the server's folder of adapters ({root}); put it there.", "lora_path")
    return path
