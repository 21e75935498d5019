"""How `inflight serve --replicas` puts the server together: HTTP here, engines in Ray's replicas.

Knows the parts and the order in which they begin.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec

from inflight import __version__
from inflight.cli.engine_loading import Doing
from inflight.cli.replica_options import Replicas
from inflight.cli.serving import tell_ready_at, with_weights
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.server import logs
from inflight.server.access_log import log_call
from inflight.server.app import make_app
from inflight.server.heap import share_one_heap
from inflight.server.ingress.tls import tls_context
from inflight.server.live.sources import MembersSource
from inflight.server.loading import make_jobs, make_live, make_prompts, make_served
from inflight.server.metrics.pool_page import PoolMetrics
from inflight.server.offload import offload
from inflight.server.preprocessing.pool import PreprocessingPool
from inflight.server.preprocessing.worker import loaded as loaded_text
from inflight.server.process import Process, listen
from inflight.server.served import OneModel
from inflight.server.service import Service
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenants
from inflight.server.tracing.opening import check_tracing, close_tracer, open_tracer

if TYPE_CHECKING:
    from inflight.cli.replicas.replica_handle import ReplicaHandle

SERIAL = 1  # of the one process that makes requests


def serve_replicas(
    settings: ServerSettings,
    engine: EngineSettings,
    scheduling: SchedulingSettings,
    tenants: Tenants,
    preprocessing: PreprocessingPool,
    *,
    replicas: Replicas,
    verbose: bool,
    started: float,
    log_format: logs.Format,
    log_level: str,
) -> int:
    """Runs until it is told to stop; returns the exit code."""
    share_one_heap()
    logs.configure(log_format, log_level)
    scheduling = with_weights(scheduling, tenants)
    check_tracing(settings)
    tls, bound = tls_context(settings), listen(settings)
    metrics = PoolMetrics(version=__version__, label="replica")
    tracer = open_tracer(settings, __version__)
    service = Service(settings, lambda ended: log_call(ended, metrics.refused))
    jobs = make_jobs(service, tenants)

    async def page() -> tuple[bytes, str]:
        """Raises ApiError while nothing is loaded."""
        if metrics.pool is None:
            raise service.not_loaded()
        return await metrics.page()

    def load(doing: Doing) -> OneModel:
        if jobs is not None:
            doing("checking the data directory")
            jobs.open()
        doing("starting Ray and the replicas")
        handle = _started(settings, engine, scheduling, replicas, verbose)
        metrics.pool = handle
        served = served_by(handle, settings, engine, preprocessing)
        return asyncio.run_coroutine_threadsafe(served, process.loop).result()

    async def begin() -> None:
        if jobs is not None:
            jobs.start(metrics.batch)
        tell_ready_at(settings, tenants, bound, started)

    async def end() -> None:
        if jobs is not None:
            await jobs.stop()
        await close_tracer(tracer)

    members = MembersSource(page, metrics.label, "replicas")
    live = make_live(service, lambda: None if metrics.pool is None else members)
    process = Process(service, load, begin, end)
    app = make_app(service, tenants, page, __version__, metrics.observe_http, jobs, spans=tracer, live=live)
    return process.run(app, bound, tls)


def _started(
    settings: ServerSettings, engine: EngineSettings, scheduling: SchedulingSettings, replicas: Replicas, verbose: bool
) -> ReplicaHandle:
    """Raises SettingsError, ModelError."""
    from inflight.build import model_folder
    from inflight.cli.replicas.deployment import OwnRay, engines, sharing_this_machine
    from inflight.cli.replicas.engine_replica import ReplicaSetup

    model_folder(engine)  # what is wrong with it is told before Ray is started
    setup, scale = ReplicaSetup(settings, engine, scheduling, verbose), replicas.scale
    if replicas.address is None:
        setup = sharing_this_machine(setup, scale)
    own_ray = OwnRay(replicas.address, scale.most or scale.replicas)
    return own_ray.run(engines(setup, replicas.router, scale))


async def served_by(
    handle: ReplicaHandle, settings: ServerSettings, engine: EngineSettings, preprocessing: PreprocessingPool
) -> OneModel:
    """The replicas' model, to those who have HTTP. Raises PreprocessingError."""
    from inflight.build import model_folder

    folder = await offload(lambda: model_folder(engine))
    preprocessing.load(folder)
    zero = time.monotonic()  # replicas' clocks are elsewhere
    described = msgspec.structs.replace(await handle.describe(), clock_zero=zero)
    text = await offload(lambda: loaded_text(folder))
    prompts, client = make_prompts(*text, described, SERIAL), handle.client(zero)
    return OneModel(await offload(lambda: make_served(settings, described, client, preprocessing, prompts, text[0])))
