"""How `inflight serve` puts the server together: engine, bridge, tenants, and the application; or, where HTTP runs in
processes of its own, who watches over them."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from inflight import __version__
from inflight.cli.engine_loading import Doing, Found, Wrap, load_engine, tell
from inflight.cli.kv_events import open_kv_events
from inflight.cli.kv_peers import wanted_peers
from inflight.cli.progress import load_numpy
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.counted import seconds_of_parts
from inflight.engine.observers import EngineObserver
from inflight.server import logs
from inflight.server.access_log import log_call
from inflight.server.app import make_app
from inflight.server.heap import share_one_heap
from inflight.server.ingress.tls import tls_context
from inflight.server.loaded_engine import LoadedEngine
from inflight.server.loading import make_jobs, make_live, make_served
from inflight.server.preprocessing.pool import PreprocessingPool
from inflight.server.process import Process, listen, url
from inflight.server.served import OneModel
from inflight.server.service import Service
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenants
from inflight.server.tracing.opening import check_tracing, close_tracer, open_tracer

if TYPE_CHECKING:
    from inflight.build import Engine


def serve(
    settings: ServerSettings,
    engine_settings: EngineSettings,
    scheduling: SchedulingSettings,
    tenants: Tenants,
    preprocessing: PreprocessingPool | None,
    *,
    record: Path | None,
    verbose: bool,
    started: float,
    log_format: logs.Format,
    log_level: str,
    wrap: Wrap | None = None,
    observers: Sequence[EngineObserver] = (),
    ready: Callable[[str], None] | None = None,
) -> int:
    """Runs until it is told to stop; returns the exit code. preprocessing: None where HTTP runs in other processes,
    each of which has its own. wrap: as `load_engine` has it. observers: of the engine, beside the server's own. ready:
    told the address, in place of the log."""
    share_one_heap()
    logs.configure(log_format, log_level)
    scheduling = with_weights(scheduling, tenants)
    check_tracing(settings)
    tls = tls_context(settings)  # other processes read it again; a mistake is told at once, and once
    bound = listen(settings)
    parts: list[tuple[str, float]] = []
    tell_ready = partial(tell_ready_at, settings, tenants, bound, started, parts)
    if ready is not None:
        tell_ready = partial(ready, url(settings, bound))
    peers = wanted_peers(settings)
    kv_events = open_kv_events(settings.kv_events_config, engine_settings)
    load_asked = partial(
        load_engine,
        settings,
        engine_settings,
        scheduling,
        record,
        verbose,
        wrap=wrap,
        kv_events=kv_events,
        observers=observers,
        peers=peers,
    )

    def load(doing: Doing, found: Found) -> tuple[Engine, LoadedEngine]:
        began = time.monotonic()
        load_numpy()
        import inflight.build.engine  # noqa: F401  (here, in the loader's thread: it brings the kernels)

        imported = time.monotonic()
        engine, loaded = load_asked(doing, found)
        parts[:] = [("server", began - started), ("imports", imported - began), *engine.start.parts()]
        return engine, loaded

    if preprocessing is not None:
        return _serve_here(settings, tenants, preprocessing, load, tell_ready, bound, tls, record)

    def load_there(doing: Doing, found: Found) -> LoadedEngine:
        return load(doing, found)[1]

    from inflight.server.processes.supervisor import Supervisor

    supervisor = Supervisor(
        settings,
        tenants,
        bound,
        load_there,
        tell_ready,
        version=__version__,
        log_format=log_format,
        log_level=log_level,
    )
    return supervisor.run()


def _serve_here(
    settings: ServerSettings,
    tenants: Tenants,
    preprocessing: PreprocessingPool,
    load: Callable[[Doing, Found], tuple[Engine, LoadedEngine]],
    tell_ready: Callable[[], None],
    bound: socket.socket,
    tls: ssl.SSLContext | None,
    record: Path | None,
) -> int:
    loaded: LoadedEngine | None = None

    def refused(code: str) -> None:
        if loaded is not None:
            loaded.metrics.refused(code)

    def observe(route: str, status: int, seconds: float) -> None:
        if loaded is not None:
            loaded.metrics.observe_http(route, status, seconds)

    async def page() -> tuple[bytes, str]:
        """Raises ApiError while nothing is loaded."""
        if loaded is None or service.loaded is None:
            raise service.not_loaded()
        return await loaded.page()

    tracer = open_tracer(settings, __version__)
    service = Service(settings, lambda ended: log_call(ended, refused))
    jobs = make_jobs(service, tenants)

    def load_here(doing: Doing) -> OneModel:
        nonlocal loaded
        if jobs is not None:
            doing("checking the data directory")
            jobs.open()
        engine, loaded = load(doing, preprocessing.load)
        described, bridge = loaded.described, loaded.bridge
        parts = (engine.prompts, engine.tokenizer, engine.adapters)
        return OneModel(make_served(settings, described, bridge, preprocessing, *parts))

    async def begin() -> None:
        if jobs is not None:
            jobs.start(None if loaded is None else loaded.metrics.batch)
        tell_ready()

    async def end() -> None:
        if jobs is not None:
            await jobs.stop()
        await close_tracer(tracer)

    live = make_live(service, lambda: None if loaded is None else loaded.shown, record)
    app = make_app(service, tenants, page, __version__, observe, jobs, spans=tracer, live=live)
    return Process(service, tenants, load_here, begin, end).run(app, bound, tls)


def tell_ready_at(
    settings: ServerSettings,
    tenants: Tenants,
    bound: socket.socket,
    started: float,
    parts: Sequence[tuple[str, float]] = (),
) -> None:
    """parts: of the start, with their seconds, where the engine is in this process."""
    taken = f": {seconds_of_parts(parts)}; {time.process_time():.2f} s of the processor" if parts else ""
    tell(f"Ready at {url(settings, bound)} after {time.monotonic() - started:.2f} s (docs at /docs){taken}.")
    if not settings.is_loopback and not tenants.required:
        tell(f"Everyone who reaches {settings.host} may use it; --api-key or --api-keys-file asks for keys.")
    if (number := len(tenants.names)) > 1 and settings.isolate_tenants:
        tell(f"Each of {number} tenants has cached prefixes of its own; --share-prefixes shares them.")
    elif number > 1:
        tell(f"All {number} tenants share cached prefixes, and can find out what others asked (--share-prefixes).")


def with_weights(scheduling: SchedulingSettings, tenants: Tenants) -> SchedulingSettings:
    """Weights of the keys file are those of the policy fair; without that policy they would have no effect."""
    weights = tenants.weights
    if not weights:
        return scheduling
    if scheduling.policy != "fair":
        name, weight = next(iter(weights.items()))
        raise SettingsError(
            f"The tenant {name!r} has the weight {weight:g}, which has no effect with --policy {scheduling.policy}; "
            "weights go with fair."
        )
    return replace(scheduling, tenant_weights={**weights, **scheduling.tenant_weights})
