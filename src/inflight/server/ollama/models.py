"""ollama's /api/tags, /api/ps, /api/show and /api/version: the models of the server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from inflight.server.asgi import body_bytes, json_of
from inflight.server.common.aliases import served_name
from inflight.server.common.prepared import check_model
from inflight.server.errors import ApiError, OllamaError
from inflight.server.ollama.caches import add_cache_routes
from inflight.server.ollama.details import Described, OllamaDetails, describe
from inflight.server.ollama.schema import MODEL, OllamaModelBody
from inflight.server.openai.models import capabilities, shown_models
from inflight.server.routes import Routes, any_errors, tenant_of
from inflight.server.served import ListedModel, ServedEngine
from inflight.server.service import Service

API_VERSION = "0.32.15"  # of ollama, whose API this follows: clients look for what is newer than some version
_FILLS = "{# .Suffix #}"  # editors look for this word of ollama's templates before they ask for gaps
_FOREVER_SECONDS = 100 * 365 * 86400.0
Capability = Literal["completion", "tools", "insert", "embedding", "thinking"]


class OllamaVersion(Struct, kw_only=True):
    """version: of ollama, whose API is followed. inflight: of this server."""

    version: str
    inflight: str


class OllamaModel(Struct, kw_only=True):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails
    capabilities: list[Capability]


class OllamaModels(Struct, kw_only=True):
    models: list[OllamaModel]


class OllamaLoaded(Struct, kw_only=True):
    """size_vram: bytes of it on a GPU. expires_at: when it is unloaded unless it is called."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str
    size_vram: int
    context_length: int


class OllamaLoadedModels(Struct, kw_only=True):
    models: list[OllamaLoaded]


class OllamaShown(Struct, kw_only=True):
    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[Capability]
    modified_at: str


def ollama_routes(service: Service, version: str) -> Routes:
    """Return the routes of ollama's API but for its endpoints that ask the engine."""
    routes = Routes("ollama")
    answered: dict[str, Any] = {"result_is": "The answer", "errors": any_errors(OllamaError)}

    @routes.get("/api/version", result=OllamaVersion, **answered)
    async def ollama_version(_: Request) -> Response:
        """The version of ollama whose API this is. ollama's endpoint."""
        return json_of(OllamaVersion(version=API_VERSION, inflight=version))

    @routes.get("/api/tags", result=OllamaModels, **answered)
    async def ollama_tags(request: Request) -> Response:
        """The models that may be called. ollama's endpoint."""
        listed = await shown_models(service, tenant_of(request))
        return json_of(OllamaModels(models=await asyncio.to_thread(lambda: [_tagged(one) for one in listed])))

    @routes.get("/api/ps", result=OllamaLoadedModels, **answered)
    async def ollama_ps(request: Request) -> Response:
        """The models in memory, and until when. ollama's endpoint."""
        listed = await shown_models(service, tenant_of(request))
        loaded = [(one, one.served) for one in listed if one.served is not None and one.adapter is None]
        found = await asyncio.to_thread(lambda: [_loaded(one, served) for one, served in loaded])
        return json_of(OllamaLoadedModels(models=found))

    @routes.post("/api/show", body=OllamaModelBody, result=OllamaShown, **answered)
    async def ollama_show(request: Request) -> Response:
        """One model's files, template and abilities. ollama's endpoint."""
        body = MODEL.decode(await body_bytes(request))
        listed = {one.name: one for one in await shown_models(service, tenant_of(request))}
        is_pool = service.models.residency is not None
        known = served_name(check_model(body.asked, tuple(listed), is_pool=is_pool), listed)
        assert known is not None, "checked"
        return json_of(await asyncio.to_thread(lambda: _shown(listed[known])))

    add_cache_routes(routes, service, answered)
    for path, why in _NOT_SERVED.items():
        _add_refusal(routes, path, why)
    return routes


_NOT_SERVED = {
    "/api/create": "models are not made here; serve a folder or file under a name of its own (--served-model-name)",
    "/api/copy": "models are not copied; --served-model-name gives one several names",
    "/api/push": "nothing is uploaded",
    "/api/blobs/{digest}": "models are not made here",
}


def _add_refusal(routes: Routes, path: str, why: str) -> None:
    async def refuse(request: Request) -> Response:
        raise ApiError(501, f"{request.url.path} is not supported: {why}.", code="not_supported")

    routes.add("POST", path, refuse, is_documented=False)


def _tag(name: str) -> str:
    """Return a name as ollama lists it, with a tag."""
    return name if ":" in name else f"{name}:latest"


def _files(one: ListedModel) -> Described:
    return describe(one.path if one.served is None else one.served.path)


def _tagged(one: ListedModel) -> OllamaModel:
    files = _files(one)
    return OllamaModel(
        name=_tag(one.name),
        model=_tag(one.name),
        modified_at=files.modified,
        size=files.nbytes,
        digest=files.digest,
        details=files.details,
        capabilities=_capabilities(one, files),
    )


def _loaded(one: ListedModel, served: ServedEngine) -> OllamaLoaded:
    files, status = _files(one), one.status
    stays = _FOREVER_SECONDS if status is None or status.idle_in is None else min(status.idle_in, _FOREVER_SECONDS)
    size = files.nbytes if status is None else status.nbytes
    return OllamaLoaded(
        name=_tag(one.name),
        model=_tag(one.name),
        size=size,
        digest=files.digest,
        details=files.details,
        expires_at=(datetime.now(UTC) + timedelta(seconds=stays)).isoformat().replace("+00:00", "Z"),
        size_vram=0 if served.device == "cpu" else size,
        context_length=served.max_model_len,
    )


def _shown(one: ListedModel) -> OllamaShown:
    files = _files(one)
    template = files.template if one.served is None else one.served.translator.encoder.template_source
    abilities = _capabilities(one, files)
    return OllamaShown(
        modelfile=f"# As inflight serves it, which reads no Modelfiles.\nFROM {one.name}\n",
        parameters=_parameters(one.served),
        template=template + _FILLS if "insert" in abilities else template,
        details=files.details,
        model_info={**files.info, "general.basename": one.name},
        capabilities=abilities,
        modified_at=files.modified,
    )


def _parameters(served: ServedEngine | None) -> str:
    """Return the settings of requests that name none, as ollama writes those of a Modelfile."""
    if served is None:
        return ""
    own = served.translator.defaults
    names = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
    names["repeat_penalty"] = "repetition_penalty"
    lines = [("num_ctx", served.max_model_len), *((name, getattr(own, field)) for name, field in names.items())]
    return "\n".join(f"{name:<30} {value:g}" for name, value in lines)


def _capabilities(one: ListedModel, files: Described) -> list[Capability]:
    """Return what the model can do; of one that is not in memory, what its files say."""
    if one.served is None:
        can_do = {"completion": not files.is_embedder, "embedding": files.is_embedder, "tools": bool(files.template)}
    else:
        can, tokenizer = capabilities(one.served), one.served.tokenizer
        fills = can.completions and tokenizer is not None and tokenizer.fill_in_middle is not None
        can_do = {"completion": can.completions, "tools": can.tools, "insert": fills}
        can_do |= {"embedding": can.embeddings, "thinking": can.reasoning}
    return [name for name in _KNOWN if can_do.get(name)]


_KNOWN: tuple[Capability, ...] = ("completion", "tools", "insert", "embedding", "thinking")
