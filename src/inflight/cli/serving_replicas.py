"""How `inflight serve --replicas` puts the server together: HTTP here, engines in Ray's replicas.

Knows the parts and the order in which they begin.
"""

from __future__ import annotations

import asyncio
import time

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
from inflight.server.loading import make_jobs, make_prompts, make_served
from inflight.server.metrics.pool_page import PoolMetrics
from inflight.server.preprocessing.pool import PreprocessingPool
from inflight.server.preprocessing.worker import loaded as loaded_text
from inflight.server.process import Process, listen
from inflight.server.served import OneModel
from inflight.server.service import Service
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenants
from inflight.server.tracing.opening import check_tracing, close_tracer, open_tracer

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
        from inflight.build import model_folder
        from inflight.cli.replicas.deployment import ReplicaDeployment, sharing_this_machine
        from inflight.cli.replicas.engine_replica import ReplicaSetup

        folder = model_folder(engine)
        preprocessing.load(folder)
        setup = ReplicaSetup(settings, engine, scheduling, verbose)
        if replicas.address is None:
            setup = sharing_this_machine(setup, replicas.scale)
        deployment = ReplicaDeployment(replicas.address, replicas.router, replicas.scale, settings.drain_timeout)
        described = deployment.start(setup)
        zero = time.monotonic()
        described = msgspec.structs.replace(described, clock_zero=zero)  # replicas' clocks are elsewhere
        client = asyncio.run_coroutine_threadsafe(deployment.client(zero), process.loop).result()
        metrics.pool = deployment
        text = loaded_text(folder)
        prompts = make_prompts(*text, described, SERIAL)
        return OneModel(make_served(settings, described, client, preprocessing, prompts, text[0]))

    async def begin() -> None:
        if jobs is not None:
            jobs.start(metrics.batch)
        tell_ready_at(settings, tenants, bound, started)

    async def end() -> None:
        if jobs is not None:
            await jobs.stop()
        await close_tracer(tracer)

    process = Process(service, load, begin, end)
    app = make_app(service, tenants, page, __version__, metrics.observe_http, jobs, spans=tracer)
    return process.run(app, bound, tls)
