"""ollama's /api/pull and /api/delete: the caches of models, which a process of its own knows."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from inflight.server.asgi import body_bytes, json_of
from inflight.server.common.aliases import served_name
from inflight.server.errors import ApiError, ollama_error
from inflight.server.generating import GONE
from inflight.server.ollama.chat import NDJSON
from inflight.server.ollama.schema import MODEL, OllamaModelBody
from inflight.server.routes import Routes, check_manages
from inflight.server.sending import ClientGone, until_gone
from inflight.server.served import ListedModel
from inflight.server.service import Service

MAX_PULLS = 2  # at once, of a process
UNLOAD_SECONDS = 10.0  # that a model may take to be unloaded before it is deleted
_STATUSES = {  # what clients show, and look for
    "asking": "pulling manifest",
    "chosen": "pulling manifest",
    "waiting": "waiting for another pull of this model",
    "verifying": "verifying sha256 digest",
}


class OllamaProgress(Struct, kw_only=True):
    status: str
    digest: str | UnsetType = UNSET
    total: int | UnsetType = UNSET
    completed: int | UnsetType = UNSET


def add_cache_routes(routes: Routes, service: Service, answered: dict[str, Any]) -> None:
    """Add the routes. answered: what the OpenAPI document says of answers."""
    pulls, deleting = asyncio.Semaphore(MAX_PULLS), asyncio.Lock()

    @routes.post("/api/pull", body=OllamaModelBody, result=OllamaProgress, content={NDJSON: {}}, **answered)
    async def ollama_pull(request: Request) -> Response:
        """Download a model into the caches. ollama's endpoint."""
        body = MODEL.decode(await body_bytes(request))
        check_manages(request, service.settings, "pull models")
        steps = _pulled(service, body.asked, pulls)
        if body.stream is not False:
            return StreamingResponse(_lines(steps), media_type=NDJSON)
        try:
            return json_of(await until_gone(request.receive, _last(steps), asyncio.Event()))
        except ClientGone:
            return Response(status_code=GONE)

    @routes.delete("/api/delete", body=OllamaModelBody, **answered)
    async def ollama_delete(request: Request) -> Response:
        """Delete a model from the caches. ollama's endpoint."""
        name = MODEL.decode(await body_bytes(request)).asked
        check_manages(request, service.settings, "delete models")
        if deleting.locked():
            raise ApiError(503, "Another model is being deleted; try again later.", code="too_many_deletes")
        async with deleting:
            await _delete(service, name)
        return Response(status_code=200)


class _Step(Struct):
    """A line of that process. path: of the model that was looked for."""

    status: str | int = ""
    model: str = ""
    path: str = ""
    digest: str = ""
    completed: int = 0
    total: int = 0
    error: str = ""


_step_of = msgspec.json.Decoder(_Step).decode


async def _ask_caches(verb: Literal["pull", "find", "delete"], name: str) -> AsyncGenerator[_Step, None]:
    """Have a model pulled, looked for or deleted, and yield the steps. A pull whose client has left ends, and goes on
    at the next. Raises ApiError."""
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


async def _listed(service: Service, name: str, path: str = "") -> ListedModel | None:
    """Return the model that the server has by a name, or else at a path."""
    listed = {one.name: one for one in await service.models.listed()}
    if (known := served_name(name, listed)) is not None:
        return listed[known]
    at_path = (one for one in listed.values() if path in (one.path, one.served.path if one.served is not None else ""))
    return next(at_path, None) if path else None


async def _delete(service: Service, name: str) -> None:
    """Delete a model that the server has not, or may unload. Raises ApiError."""
    if (one := await _listed(service, name)) is None:  # caches know more spellings of a name
        async for found in _ask_caches("find", name):
            one = await _listed(service, name, found.path)
    if one is not None:
        if not one.is_found or one.status is None:
            raise ApiError(409, f"The model {name!r} is in use by this server.", code="model_in_use")
        await _unload(service, one.name)
    async for _ in _ask_caches("delete", name):
        pass
    await _look_again(service)


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


async def _last(steps: AsyncGenerator[OllamaProgress, None]) -> OllamaProgress:
    last = OllamaProgress(status="")
    async with contextlib.aclosing(steps):
        async for one in steps:
            last = one
    return last


async def _lines(steps: AsyncGenerator[OllamaProgress, None]) -> AsyncIterator[bytes]:
    """Return a line for each step; an error is the last one."""
    async with contextlib.aclosing(steps):
        try:
            async for one in steps:
                yield msgspec.json.encode(one) + b"\n"
        except ApiError as error:
            yield msgspec.json.encode(ollama_error(error)) + b"\n"
