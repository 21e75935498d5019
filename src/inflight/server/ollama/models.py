"""ollama's /api/tags, /api/ps, /api/show, /api/version, /api/pull and /api/delete: the models of the server and of the
caches."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from inflight.server.asgi import body_bytes, json_of
from inflight.server.common.aliases import served_name
from inflight.server.common.bodies import BodyDecoder
from inflight.server.common.fields import JsonObject, Name, Text
from inflight.server.common.prepared import check_model
from inflight.server.errors import ApiError, OllamaError, invalid, ollama_error
from inflight.server.ollama.chat import NDJSON
from inflight.server.ollama.details import Described, OllamaDetails, describe
from inflight.server.openai.models import capabilities, shown_models
from inflight.server.routes import Routes, any_errors, check_operator, tenant_of
from inflight.server.served import ListedModel, Served
from inflight.server.service import Service

API_VERSION = "0.32.15"  # of ollama, whose API this follows: clients look for what is newer than some version
MAX_PULLS = 2  # at once, of a process
UNLOAD_SECONDS = 10.0  # that a model may take to be unloaded before it is deleted
_FILLS = "{# .Suffix #}"  # editors look for this word of ollama's templates before they ask for gaps
_FOREVER = timedelta(days=365 * 100)
_STATUSES = {  # what clients show, and look for
    "asking": "pulling manifest",
    "chosen": "pulling manifest",
    "waiting": "waiting for another pull of this model",
    "verifying": "verifying sha256 digest",
}
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


class OllamaProgress(Struct, kw_only=True):
    status: str
    digest: str | UnsetType = UNSET
    total: int | UnsetType = UNSET
    completed: int | UnsetType = UNSET


class OllamaModelBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """name: an older name of model. options, system, template, verbose: of clients that show a model, and change
    nothing. insecure, username, password: nothing is done with them."""

    model: Name | None = None
    name: Name | None = None
    stream: bool | None = None
    verbose: bool | None = None
    insecure: bool | None = None
    system: Text | None = None
    template: Text | None = None
    options: JsonObject | None = None

    @property
    def asked(self) -> str:
        """Return the name. Raises ApiError where there is none."""
        if found := self.model or self.name:
            return found
        raise invalid("The field 'model' is missing.", "model", "missing_field")


MODEL = BodyDecoder(OllamaModelBody, hints=frozenset({"username", "password"}))


def ollama_routes(service: Service, version: str) -> Routes:
    """Return the routes of ollama's API but for its endpoints that ask the engine."""
    routes, pulls = Routes("ollama"), asyncio.Semaphore(MAX_PULLS)
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
        known = served_name(check_model(body.asked, tuple(listed)), listed)
        assert known is not None, "checked"
        return json_of(await asyncio.to_thread(lambda: _shown(listed[known])))

    @routes.post("/api/pull", body=OllamaModelBody, result=OllamaProgress, content={NDJSON: {}}, **answered)
    async def ollama_pull(request: Request) -> Response:
        """Download a model into the caches. ollama's endpoint."""
        body = MODEL.decode(await body_bytes(request))
        _check_manages(service, request, "pull models")
        steps = _pulled(service, body.asked, pulls)
        if body.stream is not False:
            return StreamingResponse(_lines(steps), media_type=NDJSON)
        last = OllamaProgress(status="")
        async for one in steps:
            last = one
        return json_of(last)

    @routes.delete("/api/delete", body=OllamaModelBody, **answered)
    async def ollama_delete(request: Request) -> Response:
        """Delete a model from the caches. ollama's endpoint."""
        name = MODEL.decode(await body_bytes(request)).asked
        _check_manages(service, request, "delete models")
        if (one := await _listed(service, name)) is not None and one.is_found and one.status is not None:
            await _unload(service, one.name)
        elif one is not None:
            raise ApiError(409, f"The model {name!r} is in use by this server.", code="model_in_use")
        async for _ in _ask_caches("delete", name):
            pass
        await _look_again(service)
        return Response(status_code=200)

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


def _check_manages(service: Service, request: Request, action: str) -> None:
    """Refuse who may not change what the caches hold. Raises ApiError 403."""
    tenant, settings = tenant_of(request), service.settings
    check_operator(tenant, action)
    if not tenant.name and not settings.is_loopback:
        raise ApiError(
            403,
            f"This server listens on {settings.host} and asks for no key, so that no client may {action}; start it "
            "with --api-key, or with --host 127.0.0.1.",
            code="not_an_operator",
        )


# -- listed and shown --------------------------------------------------------------------------------------------------


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


def _loaded(one: ListedModel, served: Served) -> OllamaLoaded:
    files, status = _files(one), one.status
    stays = _FOREVER if status is None or status.idle_in is None else timedelta(seconds=status.idle_in)
    size = files.nbytes if status is None else status.nbytes
    return OllamaLoaded(
        name=_tag(one.name),
        model=_tag(one.name),
        size=size,
        digest=files.digest,
        details=files.details,
        expires_at=(datetime.now(UTC) + min(stays, _FOREVER)).isoformat().replace("+00:00", "Z"),
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


def _parameters(served: Served | None) -> str:
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
        told = {"completion": not files.is_embedder, "embedding": files.is_embedder, "tools": bool(files.template)}
    else:
        can, tokenizer = capabilities(one.served), one.served.tokenizer
        fills = can.completions and tokenizer is not None and tokenizer.fill_in_middle is not None
        told = {"completion": can.completions, "tools": can.tools, "insert": fills}
        told |= {"embedding": can.embeddings, "thinking": can.reasoning}
    return [name for name in _KNOWN if told.get(name)]


_KNOWN: tuple[Capability, ...] = ("completion", "tools", "insert", "embedding", "thinking")


# -- the caches, which a process of its own knows ----------------------------------------------------------------------


class _Step(Struct):
    """A line of that process."""

    status: str | int = ""
    model: str = ""
    digest: str = ""
    completed: int = 0
    total: int = 0
    error: str = ""


_step_of = msgspec.json.Decoder(_Step).decode


async def _ask_caches(verb: Literal["pull", "delete"], name: str) -> AsyncGenerator[_Step, None]:
    """Have a model pulled or deleted, and yield the steps. A pull whose client has left ends, and goes on at the next.
    Raises ApiError."""
    command = (sys.executable, "-m", "inflight.launch.model_caches", verb, name.removesuffix(":latest"))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, start_new_session=True)
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            if (step := _step_of(line)).error:
                status = int(step.status)
                code = {404: "model_not_found", 409: "model_in_use"}.get(status, "not_pulled")
                raise ApiError(
                    status, step.error, type="invalid_request_error" if status < 500 else "server_error", code=code
                )
            yield step
        if await process.wait():
            raise ApiError(500, f"The {verb} of {name!r} has failed; see the server's log.", type="server_error")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with pip, which it may have started
            await process.wait()


async def _listed(service: Service, name: str) -> ListedModel | None:
    listed = {one.name: one for one in await service.models.listed()}
    return listed.get(served_name(name, listed) or "")


async def _unload(service: Service, name: str) -> None:
    """Unload one of several models, and wait until it is. Raises ApiError where its calls take longer."""
    assert service.models.residency is not None, "it is one of several"
    await service.models.residency.unload(name)
    for _ in range(int(UNLOAD_SECONDS / 0.1)):
        one = await _listed(service, name)
        if one is None or one.status is None or one.status.state in ("unloaded", "failed"):
            return
        await asyncio.sleep(0.1)
    raise ApiError(409, f"The model {name!r} has calls in flight; try again when they have ended.", code="model_in_use")


async def _look_again(service: Service) -> None:
    """Have a pool of the models on this machine notice what has come or gone."""
    if (residency := service.models.residency) is not None:
        await residency.find()


async def _pulled(service: Service, name: str, pulls: asyncio.Semaphore) -> AsyncGenerator[OllamaProgress, None]:
    """Pull a model, and report each step; the last one is success. Raises ApiError."""
    if pulls.locked():
        raise ApiError(503, f"{MAX_PULLS} models are being pulled; try again later.", code="too_many_pulls")
    async with pulls, contextlib.aclosing(_ask_caches("pull", name)) as steps:
        async for step in steps:
            if step.status != "done":
                yield _progress(step)
    await _look_again(service)
    for status in ("writing manifest", "success"):
        yield OllamaProgress(status=status)


def _progress(step: _Step) -> OllamaProgress:
    """Return a step as clients show it. They know each file by its digest, which they cut."""
    if step.status != "downloading":
        return OllamaProgress(status=_STATUSES.get(str(step.status), str(step.status)))
    digest = step.digest or hashlib.sha256(step.model.encode()).hexdigest()
    return OllamaProgress(
        status=f"pulling {digest[:12]}", digest=f"sha256:{digest}", total=step.total, completed=step.completed
    )


async def _lines(steps: AsyncGenerator[OllamaProgress, None]) -> AsyncIterator[bytes]:
    """Return a line for each step; an error is the last one."""
    async with contextlib.aclosing(steps):
        try:
            async for one in steps:
                yield msgspec.json.encode(one) + b"\n"
        except ApiError as error:
            yield msgspec.json.encode(ollama_error(error)) + b"\n"
