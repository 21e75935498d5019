"""/v1/models: the models and adapters that are served, and how operators load and unload them.

Models are loaded under the paths that llama.cpp's router has, too, and adapters under vLLM's. Only operators may do so.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from inflight.core.types.sampling import MAX_NAME_CHARS
from inflight.frontend.parsers.generic import GENERIC_NAME
from inflight.server.asgi import JsonResponse, body_bytes, json_of
from inflight.server.common.aliases import served_name
from inflight.server.common.bodies import BodyDecoder
from inflight.server.common.fields import Name
from inflight.server.common.prepared import check_model
from inflight.server.errors import ApiError, invalid
from inflight.server.generating import GONE
from inflight.server.model_status import ModelStatus
from inflight.server.routes import Routes, any_errors, check_operator, read_query, tenant_of
from inflight.server.sending import ClientGone, until_gone
from inflight.server.served import AdapterLoading, ListedModel, ModelResidency, OneModel, ServedEngine
from inflight.server.service import Service
from inflight.server.tenants import Tenant

MAX_PATH_CHARS = 4096

Required = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]


class LoadAdapterBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """lora_path: within the folder of --lora-dir, absolute or from there on."""

    lora_name: Required
    lora_path: Annotated[str, Meta(min_length=1, max_length=MAX_PATH_CHARS)]
    base_model_name: Name | None = None


class UnloadAdapterBody(Struct, kw_only=True, forbid_unknown_fields=True):
    lora_name: Required


LOAD_ADAPTER = BodyDecoder(LoadAdapterBody)
UNLOAD_ADAPTER = BodyDecoder(UnloadAdapterBody)


class ModelBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """model: any of its names."""

    model: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]


MODEL = BodyDecoder(ModelBody)


class Capabilities(Struct, kw_only=True):
    """Kinds of answers that a model gives. tool_format: name of the form in which it is shown tools and writes calls;
    "generic" where its chat template knows none; null where it is given no tools."""

    completions: bool
    chat: bool
    tools: bool
    tool_format: str | None
    reasoning: bool
    structured_output: bool
    embeddings: bool
    scores: bool
    classes: bool


class Residency(Struct, kw_only=True):
    """One of several models: memory that it takes, or would take; calls that it has, and that wait for it."""

    memory_bytes: int
    pinned: bool
    calls: int
    waiting: int
    seconds_until_loaded: float | None
    error: str | None


class ModelLane(Struct, kw_only=True):
    """background: it has what others leave. takes_priority: a request may name one there. `service_tier: "flex"` asks
    for the lane batch; the header x-llm-d-inference-objective for any."""

    name: str
    background: bool
    takes_priority: bool


class Model(Struct, kw_only=True):
    """max_model_len, capabilities, lanes: null where the model is not in memory."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int | None
    capabilities: Capabilities | None
    lanes: list[ModelLane] | None
    state: Literal["unloaded", "loading", "loaded", "draining", "unloading", "failed"]
    residency: Residency | UnsetType = UNSET


class ModelState(Struct, kw_only=True):
    success: bool
    model: str
    state: Literal["unloaded", "loading", "loaded", "draining", "unloading", "failed"]
    memory_bytes: int
    pinned: bool
    calls: int
    waiting: int
    seconds_until_loaded: float | None
    error: str | None


class Models(Struct, kw_only=True):
    object: Literal["list"]
    data: list[Model]


class TokenizerInfo(Struct, kw_only=True):
    """And whatever other special tokens the model's settings name."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None


# -- what is served ----------------------------------------------------------------------------------------------------


class TokenizerQuery(Struct):
    model: str | None = None


def model_routes(service: Service) -> Routes:
    routes = Routes("model")
    started = int(time.time())
    answered: dict[str, Any] = {"result_is": "The answer", "errors": any_errors()}

    async def models(request: Request) -> Response:
        """List the models and adapters that the caller may name."""
        data = [_described(one, started) for one in await shown_models(service, tenant_of(request))]
        return json_of(Models(object="list", data=data))

    routes.add("GET", "/v1/models", models, result=Models, **answered)
    routes.add("GET", "/v1/models/", models, is_documented=False)  # else it would name a model ""

    @routes.get("/v1/models/{name:path}", result=Model, **answered)
    async def model(request: Request) -> Response:
        """Describe one model or adapter."""
        shown = {one.name: one for one in await shown_models(service, tenant_of(request))}
        is_pool = service.models.residency is not None
        known = served_name(check_model(request.path_params["name"], tuple(shown), is_pool=is_pool), shown)
        assert known is not None, "checked"
        return json_of(_described(shown[known], started))

    @routes.get("/tokenizer_info", query=TokenizerQuery, result=TokenizerInfo, **answered)
    async def tokenizer_info(request: Request) -> Response:
        """Describe the model's tokenizer, as far as it changes how text is cut. model: where there are several."""
        model = read_query(request, TokenizerQuery).model
        with service.entered(tenant_of(request)):
            acquiring = service.models.acquire(model)
            try:
                model_lease = await until_gone(request.receive, acquiring, asyncio.Event())
            except ClientGone:
                return Response(status_code=GONE)
            try:
                return JsonResponse(_of_tokenizer(model_lease.served))
            finally:
                model_lease.release()

    return routes


async def shown_models(service: Service, tenant: Tenant) -> list[ListedModel]:
    """Return the models and adapters that the tenant may name."""
    return [one for one in await service.models.listed() if one.adapter is None or tenant.may_name(one.name)]


def _described(one: ListedModel, created: int) -> Model:
    served, status = one.served, one.status
    return Model(
        id=one.name,
        object="model",
        created=created,
        owned_by="inflight",
        root=one.model if one.adapter is None else one.adapter.path,
        parent=None if one.adapter is None else one.model,
        max_model_len=None if served is None else served.max_model_len,
        capabilities=None if served is None else capabilities(served),
        lanes=None if served is None else _lanes(served),
        state="loaded" if status is None else status.state,
        residency=UNSET if status is None else Residency(**_residency(status)),
    )


def _residency(status: ModelStatus) -> dict[str, Any]:
    return {
        "memory_bytes": status.nbytes,
        "pinned": status.is_pinned,
        "calls": status.in_flight,
        "waiting": status.waiting,
        "seconds_until_loaded": None if status.state == "failed" else round(status.seconds, 1),
        "error": status.failure or None,
    }


def _of_tokenizer(served: ServedEngine) -> dict[str, Any]:
    """Return a `TokenizerInfo`, with the model's other special tokens. Raises ApiError."""
    tokenizer = served.tokenizer
    if tokenizer is None:
        raise ApiError(404, "This model has no tokenizer; use token ids.", code="not_found")
    named = {f"{name}_token": None for name in ("bos", "eos", "pad", "unk")}
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "vocab_size": tokenizer.vocab_size}
    return {**named, **tokenizer.special_tokens, **about, "model_max_length": served.max_model_len}


def _lanes(served: ServedEngine) -> list[ModelLane]:
    return [
        ModelLane(name=one.name, background=one.background, takes_priority=one.takes_priority)
        for one in served.translator.lanes
    ]


def capabilities(served: ServedEngine) -> Capabilities:
    parsers, pooler = served.translator.parsers, served.translator.pooler
    if not served.generates:
        parsers = None
    tool_format = None if parsers is None else parsers.names.tools
    if tool_format != GENERIC_NAME and not served.translator.encoder.shows_tools:
        tool_format = None
    return Capabilities(
        completions=served.generates,
        chat=served.generates and served.translator.encoder.can_chat,
        tools=tool_format is not None,
        tool_format=tool_format,
        reasoning=parsers is not None and parsers.reasoning_ends is not None,
        structured_output=served.generates and served.keeps_grammars,
        embeddings=pooler is not None and not pooler.labels,
        scores=pooler is not None and len(pooler.labels) <= 1,
        classes=pooler is not None and bool(pooler.labels),
    )


# -- loading and unloading ---------------------------------------------------------------------------------------------


def residency_routes(service: Service) -> Routes:
    """Return the routes by which operators load and unload one of several models."""
    routes = Routes("model")

    async def load(request: Request) -> Response:
        """Load a model before any call needs it; the answer comes when it is in memory."""
        residency, name = await asked(request)
        return _state_of(await residency.load(name))

    async def unload(request: Request) -> Response:
        """Unload a model as soon as its calls have ended; the answer comes at once. The next call loads it again."""
        residency, name = await asked(request)
        return _state_of(await residency.unload(name))

    async def asked(request: Request) -> tuple[ModelResidency, str]:
        """Return the pool and the name that a body asks for. Raises ApiError."""
        check_operator(tenant_of(request), "load and unload models")
        body, residency = MODEL.decode(await body_bytes(request)), service.models.residency
        if residency is None:
            raise invalid("This server has one model, which is always loaded; --models has several.", "model")
        return residency, body.model

    documented: dict[str, Any] = {"body": ModelBody, "result": ModelState, "result_is": "The answer"}
    for path, answer in (("/v1/models/load", load), ("/v1/models/unload", unload)):
        routes.add("POST", path, answer, errors=any_errors(), **documented)
        routes.add("POST", path.removeprefix("/v1"), answer, is_documented=False)
    return routes


def _state_of(status: ModelStatus) -> Response:
    return json_of(ModelState(success=True, model=status.name, state=status.state, **_residency(status)))


def adapter_routes(service: Service) -> Routes:
    """Return the routes by which operators load and unload adapters."""
    routes = Routes("model")
    folder = service.settings.lora_dir
    documented: dict[str, Any] = {"content": {"text/plain": {"type": "string"}}, "errors": any_errors()}

    def adapters() -> AdapterLoading:
        """Return the part that loads adapters. Raises ApiError where there is none."""
        models = service.models
        if not isinstance(models, OneModel) or models.adapter_loading is None:
            raise invalid("Adapters of several engines are named at the start, as lora = [...] or --lora.", "lora_name")
        return models.adapter_loading

    @routes.post("/v1/load_lora_adapter", body=LoadAdapterBody, **documented)
    async def load(request: Request) -> Response:
        """Add an adapter that requests may name as their model from now on; its matrices are read when one does."""
        check_operator(tenant_of(request), "load and unload adapters")
        body = LOAD_ADAPTER.decode(await body_bytes(request))
        path = _within(folder, body)
        await adapters().load_adapter(body.lora_name, path)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    @routes.post("/v1/unload_lora_adapter", body=UnloadAdapterBody, **documented)
    async def unload(request: Request) -> Response:
        """Forget an adapter: no request may name it any more; those in flight go on with it."""
        check_operator(tenant_of(request), "load and unload adapters")
        body = UNLOAD_ADAPTER.decode(await body_bytes(request))
        await adapters().unload_adapter(body.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    return routes


def _within(folder: Path | None, body: LoadAdapterBody) -> Path:
    """Return the adapter's path. Raises ApiError for one that leads out of the folder."""
    if folder is None:
        raise ApiError(
            403,
            "Loading adapters at run time is disabled; start the server with --lora-dir FOLDER.",
            code="adapters_not_loadable",
        )
    root = folder.resolve()
    try:
        path = (root / body.lora_path).resolve()
    except (OSError, RuntimeError, ValueError):  # links in a circle; a zero byte
        path = root.parent
    if not path.is_relative_to(root):
        raise invalid(f"lora_path is outside --lora-dir ({root}); put the adapter into that folder.", "lora_path")
    return path
