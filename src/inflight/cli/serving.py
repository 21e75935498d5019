"""How `inflight serve` puts the server together in one process: engine, bridge, tenants, application; and the engine
alone, where HTTP runs in others (`serving_processes`)."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from inflight import __version__
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.engine.bridge import AsyncBridge
from inflight.engine.event_stream import EngineStopped
from inflight.models.gguf.gguf_model import is_gguf, model_name
from inflight.server import logs
from inflight.server.access_log import log_call
from inflight.server.app import make_app
from inflight.server.batch.service import BatchService
from inflight.server.heap import share_one_heap
from inflight.server.ingress.tls import tls_context
from inflight.server.line_calls import LineAnswerer
from inflight.server.loading import Described, make_served
from inflight.server.metrics import Metrics
from inflight.server.offload import offload
from inflight.server.preprocessing.pool import PreprocessingPool
from inflight.server.process import Process, is_open_to_others, listen, url
from inflight.server.service import Served, Service
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenants

if TYPE_CHECKING:
    from inflight.build import Engine


def serve(
    settings: ServerSettings,
    engine_settings: EngineSettings,
    scheduling: SchedulingSettings,
    tenants: Tenants,
    preprocessing: PreprocessingPool,
    *,
    record: Path | None,
    verbose: bool,
    started: float,
    log_format: logs.Format,
    log_level: str,
) -> int:
    """Runs until it is told to stop; returns the exit code."""
    share_one_heap()
    logs.configure(log_format, log_level)
    scheduling = with_weights(scheduling, tenants)
    tls = tls_context(settings)
    bound = listen(settings)
    watched = _Watched()
    service = Service(settings, lambda ended: log_call(ended, watched.refused))

    jobs = _jobs(service, tenants)

    def load(doing: Callable[[str], None]) -> Served:
        if jobs is not None:
            doing("checking the data directory")
            jobs.open()
        engine, watched.metrics = load_engine(
            settings, engine_settings, scheduling, record, verbose, doing, preprocessing.load
        )
        return make_served(
            settings,
            described(engine, settings, engine_settings, scheduling),
            AsyncBridge(engine.loop),
            preprocessing,
            engine.prompts,
            engine.tokenizer,
            engine.loop.clock.now,
        )

    async def begin() -> None:
        if jobs is not None:
            jobs.start(None if watched.metrics is None else watched.metrics.batch)
        tell_ready(settings, tenants, bound, started)

    async def end() -> None:
        if jobs is not None:
            await jobs.stop()
        if service.loaded is not None:
            await service.loaded.preprocessing.close()

    app = make_app(service, tenants, partial(watched.page, service), __version__, watched.observe, jobs)
    return Process(service, load, begin, end).run(app, bound, tls)


class _Watched:
    """The metrics, which there are as soon as an engine is loaded."""

    def __init__(self) -> None:
        self.metrics: Metrics | None = None

    def observe(self, route: str, status: int, seconds: float) -> None:
        if self.metrics is not None:
            self.metrics.observe_http(route, status, seconds)

    def refused(self, code: str) -> None:
        if self.metrics is not None:
            self.metrics.refused(code)

    async def page(self, service: Service) -> tuple[bytes, str]:
        """Raises ApiError while nothing is loaded."""
        served = service.loaded
        if self.metrics is None or served is None:
            raise service.not_loaded()
        try:
            snapshot = await served.bridge.snapshot()
        except EngineStopped:
            snapshot = None
        return await offload(partial(self.metrics.render, snapshot))


def _jobs(service: Service, tenants: Tenants) -> BatchService | None:
    """Batch jobs, where there is a place to keep them."""
    settings = service.settings
    if settings.data_dir is None:
        return None
    return BatchService(
        settings.data_dir,
        LineAnswerer(service),
        tenants.named,
        concurrency=settings.batch_concurrency or 64,
        max_file_mb=settings.max_file_mb or 512,
        max_stored_mb=settings.max_stored_mb or 10_240,
        max_stored_files=settings.max_stored_files or 10_000,
    )


def load_engine(
    settings: ServerSettings,
    engine_settings: EngineSettings,
    scheduling: SchedulingSettings,
    record: Path | None,
    verbose: bool,
    doing: Callable[[str], None],
    found: Callable[[Path], None],
) -> tuple[Engine, Metrics]:
    """found: told the model's folder, before the engine is loaded."""
    # Here, in the loader's thread: it brings numpy and the kernels.
    from inflight.build import build_engine, model_folder

    def progress(done: int, total: int) -> None:
        doing(f"loading the model ({done / 1e6:,.0f} of {total / 1e6:,.0f} M parameters)")

    doing("loading the model")
    found(model_folder(engine_settings))
    engine = build_engine(engine_settings, scheduling, record, progress)
    engine.prompts.check_chat()
    if verbose:
        for name, entry in engine.settings.items():
            _tell(f"{name}: {entry.value} ({entry.reason})")
    lanes = dict.fromkeys(("interactive", "batch", *scheduling.lanes))
    model = _models(settings, engine_settings)[0]
    metrics = Metrics(model, engine.capacity, settings.metrics_names, version=__version__, lanes=lanes)
    engine.loop.watch(metrics.observer)
    return engine, metrics


def described(
    engine: Engine, settings: ServerSettings, engine_settings: EngineSettings, scheduling: SchedulingSettings
) -> Described:
    return Described(
        models=_models(settings, engine_settings),
        max_model_len=engine.capacity.max_model_len,
        vocab_size=engine.capacity.vocab_size,
        most_sequences=scheduling.most_queued,
        defaults=engine.defaults,
        seed=engine_settings.seed,
    )


def _models(settings: ServerSettings, engine_settings: EngineSettings) -> tuple[str, ...]:
    """A GGUF file is called by its name, without its folder and suffix."""
    model = engine_settings.model or "built-in"
    return settings.served_model_name or (model_name(path) if is_gguf(path := Path(model)) else model,)


def tell_ready(settings: ServerSettings, tenants: Tenants, bound: socket.socket, started: float) -> None:
    _tell(f"Ready at {url(settings, bound)} after {time.monotonic() - started:.2f} s (docs at /docs).")
    if is_open_to_others(settings) and not tenants.required:
        _tell(f"Everyone who reaches {settings.host} may use it; --api-key or --api-keys-file asks for keys.")


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


def _tell(sentence: str) -> None:
    logging.getLogger("inflight.server").info(sentence)
