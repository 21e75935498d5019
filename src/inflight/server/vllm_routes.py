"""Serve the routes by which vLLM's operators and their scripts ask: /load, /server_info, /reset_prefix_cache, /sleep.

What changes the server is for operators. A model of a pool sleeps where it is unloaded; the next call wakes it up.
"""

from __future__ import annotations

import os
import platform
from typing import Any, Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from inflight.server.asgi import json_of
from inflight.server.common.prepared import check_model
from inflight.server.engine_access import EngineAccess
from inflight.server.errors import ApiError, invalid
from inflight.server.model_status import ModelStatus
from inflight.server.routes import Routes, any_errors, check_manages, check_operator, read_query, tenant_of
from inflight.server.served import ModelResidency
from inflight.server.service import Service


class ServerLoad(Struct, kw_only=True):
    """server_load: calls in flight, in all API processes."""

    server_load: int


class InfoQuery(Struct):
    config_format: Literal["text", "json"] = "text"


class ServerInfo(Struct, kw_only=True):
    """vllm_config: this server's settings, by the names of its options; those of each engine where there are several.
    vllm_env: empty."""

    vllm_config: str | dict[str, Any]
    vllm_env: dict[str, str]
    system_env: dict[str, str]


class ResetQuery(Struct):
    reset_running_requests: bool = False
    reset_external: bool = False


class CacheReset(Struct, kw_only=True):
    """blocks: that had content."""

    success: bool
    blocks: int


class SleepQuery(Struct):
    level: int = 1
    mode: str = "wait"
    model: str | None = None


class WakeQuery(Struct):
    model: str | None = None


class Sleeping(Struct, kw_only=True):
    """is_sleeping: all models are unloaded. models: the state of each, of several; draining: until its calls end."""

    is_sleeping: bool
    models: dict[str, str]


def vllm_routes(service: Service, engines: EngineAccess | None, version: str) -> Routes:
    """Return the routes. engines: None where they cannot be asked."""
    routes, answered = Routes("operation"), {"errors": any_errors()}

    @routes.get("/load", result=ServerLoad, needs_key=False)
    async def server_load(_: Request) -> Response:
        """The number of calls in flight."""
        return json_of(ServerLoad(server_load=service.counts.everywhere))

    @routes.get("/server_info", query=InfoQuery, result=ServerInfo, **answered)
    async def server_info(request: Request) -> Response:
        """The settings in force; for operators."""
        check_operator(tenant_of(request), "see the settings")
        as_text = read_query(request, InfoQuery).config_format == "text"
        config: dict[str, Any] = {}
        for name, answer in ({} if engines is None else await engines.slots()).items():
            own = {one.name: one.value for one in answer.hello.settings} if answer.hello is not None else {}
            config |= {name: own} if name else own
        system = {
            "inflight_version": version,
            "python_version": platform.python_version(),
            "os": platform.platform(),
            "cpu_count": str(os.cpu_count()),
        }
        text = ", ".join(f"{name}={value!r}" for name, value in config.items())
        return json_of(ServerInfo(vllm_config=text if as_text else config, vllm_env={}, system_env=system))

    @routes.post("/reset_prefix_cache", query=ResetQuery, result=CacheReset, **answered)
    async def reset_prefix_cache(request: Request) -> Response:
        """Drop all cached prefixes, of device and host; for operators. 409 while a request uses the cache."""
        check_manages(request, service.settings, "reset the prefix cache")
        query = read_query(request, ResetQuery)
        if query.reset_running_requests:
            raise invalid(
                "Running requests are not preempted for a reset; wait until none is in flight.",
                "reset_running_requests",
            )
        if query.reset_external:
            raise invalid(
                "The folder of --kv-cache-dir is not emptied while it is in use; leave it out.", "reset_external"
            )
        service.check()
        if engines is None:
            raise ApiError(404, "This server's engine takes no resets.", code="not_found")
        reset = await engines.reset()
        if reset.error is not None:
            raise ApiError(409, reset.error, code="cache_in_use" if reset.is_busy else "cache_not_resettable")
        return json_of(CacheReset(success=True, blocks=reset.blocks))

    _add_sleep(routes, service)
    return routes


def _add_sleep(routes: Routes, service: Service) -> None:
    answered = {"errors": any_errors()}

    @routes.post("/sleep", query=SleepQuery, result=Sleeping, **answered)
    async def sleep(request: Request) -> Response:
        """Unload models as soon as their calls have ended: the one that is named, or all that are not pinned; for
        operators. The level changes nothing: weights and caches are dropped. The next call of a model loads it."""
        check_manages(request, service.settings, "put models to sleep")
        query, residency = read_query(request, SleepQuery), service.models.residency
        if query.mode != "wait":
            raise invalid(
                f"mode is {query.mode[:20]!r}, but calls are not aborted or paused for a sleep; use wait.",
                "mode",
            )
        if residency is None:
            raise invalid(
                "This server has one model, which stays in memory; serve it by --models FILE.toml, whose models can "
                "be unloaded, and with idle = SECONDS are so on their own.",
                "model",
                "unsupported_task",
            )
        for name in await _sleepers(service, query.model):
            await residency.unload(name)
        return json_of(await _state(service))

    @routes.post("/wake_up", query=WakeQuery, result=Sleeping, **answered)
    async def wake_up(request: Request) -> Response:
        """Load a model before a call needs it; the answer comes when it is in memory. For operators."""
        check_manages(request, service.settings, "wake models up")
        query, residency = read_query(request, WakeQuery), service.models.residency
        if residency is None:
            check_model(query.model, tuple(one.name for one in await service.models.listed()))
        else:
            await residency.load(query.model or await _only(service, residency))
        return json_of(await _state(service))

    @routes.get("/is_sleeping", result=Sleeping, **answered)
    async def is_sleeping(_: Request) -> Response:
        """Whether all models are unloaded; a server with one model never sleeps."""
        return json_of(await _state(service))


async def _statuses(service: Service) -> dict[str, ModelStatus]:
    """Return the status of each of several models; none where there is one."""
    return {one.model: one.status for one in await service.models.listed() if one.status is not None}


async def _sleepers(service: Service, asked: str | None) -> list[str]:
    """Return the models that are to sleep. Raises ApiError where all are pinned."""
    if asked is not None:
        return [asked]
    statuses = await _statuses(service)
    found = [name for name, one in statuses.items() if not one.is_pinned and one.state in ("loaded", "draining")]
    if not found and all(one.is_pinned for one in statuses.values()):
        raise ApiError(
            409,
            "All models are pinned; take pin = true out of the models file.",
            param="model",
            code="model_not_unloadable",
        )
    return found


async def _only(service: Service, residency: ModelResidency) -> str:
    """Return the only model. Raises ApiError where there are several."""
    names = list(await _statuses(service))
    if len(names) != 1:
        raise invalid(f"Name a model, as ?model=NAME; this server has {', '.join(names)}.", "model")
    return names[0]


async def _state(service: Service) -> Sleeping:
    states = {name: str(one.state) for name, one in (await _statuses(service)).items()}
    asleep = bool(states) and all(state in ("unloaded", "unloading", "failed") for state in states.values())
    return Sleeping(is_sleeping=asleep, models=states)
