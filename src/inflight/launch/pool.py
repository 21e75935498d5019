"""Assemble a server over a pool of engines: HTTP, tenants, batch jobs and metrics here, engines in other processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from inflight import __version__
from inflight.launch.engine_loading import Doing
from inflight.launch.one_model import log_ready
from inflight.server.access_log import log_call
from inflight.server.app import make_app
from inflight.server.listening import listen
from inflight.server.live.members import MembersSource
from inflight.server.loader import LOADER, in_own_thread
from inflight.server.loading import make_jobs, make_live
from inflight.server.metrics.pool_page import PoolMetrics
from inflight.server.process import Process
from inflight.server.served import ServedModels
from inflight.server.service import Service
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenants
from inflight.server.tls import tls_context
from inflight.server.tracing.opening import check_tracing, close_tracer, open_tracer

LoadPool = Callable[[Doing, asyncio.AbstractEventLoop], ServedModels]


def serve_pool(
    settings: ServerSettings, tenants: Tenants, metrics: PoolMetrics, load: LoadPool, *, started: float
) -> int:
    """Run until a signal stops the server. Return the exit code.

    Args:
        metrics: `load` sets its pool.
        load: Loads the models in a thread of its own. Called with a callback for its stages and the event loop of HTTP.
        started: When the command began, on the monotonic clock.
    """
    check_tracing(settings)
    tls, bound = tls_context(settings), listen(settings)
    tracer = open_tracer(settings, __version__)
    service = Service(settings, lambda ended: log_call(ended, metrics.refused))
    jobs = make_jobs(service, tenants)

    async def page() -> tuple[bytes, str]:
        """Return the metrics page. Raises ApiError until a model is loaded."""
        if metrics.pool is None:
            raise service.not_loaded()
        return await metrics.page()

    def load_here(doing: Doing) -> ServedModels:
        if jobs is not None:
            doing("checking the data directory")
            jobs.open()
        return load(doing, process.loop)

    async def open_pool(doing: Doing) -> ServedModels:
        return await in_own_thread(partial(load_here, doing), LOADER)

    async def begin() -> None:
        if jobs is not None:
            jobs.start(metrics.batch)
        log_ready(settings, tenants, bound, started)

    async def end() -> None:
        if jobs is not None:
            await jobs.stop()
        await close_tracer(tracer)

    async def shown(asked: bytes) -> Mapping[str, bytes]:
        return {} if metrics.pool is None else await metrics.pool.shown(asked)

    members = MembersSource(page, metrics.label, f"{metrics.label.removesuffix('_name')}s", shown)
    live = make_live(service, lambda: None if metrics.pool is None else members)
    process = Process(service, tenants, open_pool, begin, end)
    app = make_app(service, tenants, page, __version__, metrics.observe_http, jobs, spans=tracer, live=live)
    return process.run(app, bound, tls)
