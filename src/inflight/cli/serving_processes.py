"""How `inflight serve --api-processes` is put together: the engine, and who watches over the processes beside it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from inflight import __version__
from inflight.cli.serving import described, load_engine, tell_ready, with_weights
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.engine.bridge import AsyncBridge
from inflight.server import logs
from inflight.server.heap import share_one_heap
from inflight.server.ingress.tls import tls_context
from inflight.server.process import bind, listen
from inflight.server.processes.supervisor import Engine, Supervisor
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenants


def serve_processes(
    settings: ServerSettings,
    engine_settings: EngineSettings,
    scheduling: SchedulingSettings,
    tenants: Tenants,
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
    tls_context(settings)  # each process reads it again; a mistake is told at once, and once
    with listen(settings) as alone:  # told at once, where somebody else has the port
        settings = replace(settings, port=alone.getsockname()[1])
    bound = bind(settings, shared=True)  # kept, so that the port stays ours whoever of the others ends

    def load(doing: Callable[[str], None], found: Callable[[Path], None]) -> Engine:
        engine, metrics = load_engine(settings, engine_settings, scheduling, record, verbose, doing, found)
        clock_zero = time.monotonic() - engine.loop.clock.now()
        about = described(engine, settings, engine_settings, scheduling)
        return Engine(AsyncBridge(engine.loop), metrics, about, clock_zero)

    begin = partial(tell_ready, settings, tenants, bound, started)
    supervisor = Supervisor(
        settings, tenants, load, begin, version=__version__, log_format=log_format, log_level=log_level
    )
    code = supervisor.run()
    if supervisor.is_loading:  # told to stop meanwhile
        logging.shutdown()
        os._exit(code)
    return code
