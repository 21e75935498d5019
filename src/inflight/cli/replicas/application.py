"""Define the server as an application of Ray Serve's, for `serve run` and for a RayService on Kubernetes:

    serve run inflight.cli.replicas.application:app model=DIR replicas=4 max-num-seqs=64

HTTP is a deployment of its own, of one replica, since keys, limits, files and batch jobs are in one place; Ray's proxy
stands before it. Arguments are the options of `inflight serve`, by their long names; those of the address, of
connections and of logs are Ray's here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette

from inflight import __version__
from inflight.cli.serve import command, settings_of
from inflight.launch.one_model import with_weights
from inflight.ray.deployment import MAX_ONGOING, pools
from inflight.ray.replica_handle import ReplicaHandle
from inflight.ray.replica_setup import Replicas, ReplicaSetup, pool_setups
from inflight.server.access_log import log_call
from inflight.server.app import make_app
from inflight.server.loading import make_jobs, make_prompts, make_served
from inflight.server.metrics.pool_page import PoolMetrics
from inflight.server.preprocessing.pool import PreprocessingPool
from inflight.server.served import OneModel
from inflight.server.service import Service
from inflight.server.tenants import Tenants, load_tenants
from inflight.server.tracing.opening import close_tracer, open_tracer

SERIAL = 1  # of the only process that makes requests


class HttpReplica:
    """Serve HTTP in a replica of Ray's."""

    app: Starlette

    def __init__(
        self,
        handle: DeploymentHandle[Any],
        prefill: DeploymentHandle[Any] | None,
        setup: ReplicaSetup,
        tenants: Tenants,
    ):
        self._handle, self._prefill, self._setup = handle, prefill, setup
        self._metrics = PoolMetrics(version=__version__, label="replica")
        self._service = Service(setup.server, lambda ended: log_call(ended, self._metrics.refused))
        self._jobs = make_jobs(self._service, tenants)
        self._tracer = open_tracer(setup.server, __version__)
        self._preprocessing = PreprocessingPool()
        observe = self._metrics.observe_http
        HttpReplica.app = make_app(
            self._service, tenants, self._page, __version__, observe, self._jobs, spans=self._tracer
        )
        HttpReplica.app.router.lifespan_context = self._lifespan

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Begin; Ray asks nothing before that has ended."""
        await self._begin()
        yield

    async def _begin(self) -> None:
        if self._jobs is not None:
            self._jobs.open()
        handle = ReplicaHandle(self._handle, lambda: None, prefill=self._prefill)
        self._metrics.pool = handle
        self._service.ready(await self._served_by(handle))
        if self._jobs is not None:
            self._jobs.start(self._metrics.batch)

    async def _served_by(self, handle: ReplicaHandle) -> OneModel:
        """Make the served model of the replicas. Raises PreprocessingError."""
        from inflight.build import text_files

        setup, preprocessing = self._setup, self._preprocessing
        text = await asyncio.to_thread(lambda: text_files(setup.engine))
        preprocessing.load(text)
        described, client = await handle.connect(setup.scheduling.weighs_tenants)
        tokenizer, template = await asyncio.to_thread(text.load_if_any)
        prompts = make_prompts(tokenizer, template, described, SERIAL)
        make = partial(make_served, setup.server, described, client, preprocessing, prompts, tokenizer, text.model)
        return OneModel(await asyncio.to_thread(make))

    async def _page(self) -> tuple[bytes, str]:
        return await self._metrics.page()

    async def __del__(self) -> None:
        """Close the parts. Ray calls it once the calls in flight have ended."""
        if self._jobs is not None:
            await self._jobs.stop()
        await close_tracer(self._tracer)
        if self._service.loaded is not None:
            await self._service.loaded.close()


def current_app() -> Starlette:
    return HttpReplica.app


def app(arguments: Mapping[str, Any]) -> serve.Application:
    """Return the application for these options. Raises click.UsageError, SettingsError."""
    given = {"replicas": 1, **arguments}
    texts = {name: json.dumps(value) if isinstance(value, dict) else str(value) for name, value in given.items()}
    words = [word for name, text in texts.items() for word in (f"--{name}", text)]
    with command.make_context("serve", words) as context:  # which some settings ask what was given
        values = context.params
        asked = settings_of(values.pop("name"), values)
    assert isinstance(asked.replicas, Replicas), "given"
    tenants = load_tenants(asked.api_keys, asked.keys_file)
    server = asked.server.for_tenants(len(tenants.names))
    if "host" not in arguments:  # the address is Ray's own, and others may reach it
        server = replace(server, host="0.0.0.0")
    setup = ReplicaSetup(
        server=server,
        engine=asked.engine,
        scheduling=with_weights(asked.scheduling, tenants),
        verbose=asked.verbose,
    )
    http = serve.deployment(
        serve.ingress(current_app)(HttpReplica),
        name="http",
        num_replicas=1,
        max_ongoing_requests=MAX_ONGOING,
        ray_actor_options={"num_cpus": 0},  # the places are the engines'
    )
    setups = pool_setups(setup, asked.replicas.prefill is not None, is_local=False)
    return http.bind(*pools(*setups, asked.replicas), setups[0], tenants)
