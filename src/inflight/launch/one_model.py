"""Start the server of one model; open the listening socket and supervise the processes of any server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from inflight import __version__
from inflight.config.engine import EngineSettings
from inflight.config.kv_events import OPTION
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.counted import counted, seconds_of_parts
from inflight.engine.kv_events import KVEventOptions
from inflight.launch.engine_setup import EngineSetup
from inflight.launch.running_servers import Registration
from inflight.server import logs
from inflight.server.listening import listen, url
from inflight.server.processes.engine_keeper import EngineKeeper
from inflight.server.processes.messages import ServerSetup, ToChild, encode
from inflight.server.processes.supervisor import MakeEngines, Supervisor
from inflight.server.processes.worker import ENDING_SECONDS, Worker
from inflight.server.processes.worker_messages import EngineReady
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenants
from inflight.server.tracing.opening import check_tracing

ENGINE = "inflight.launch.engine_process"

log = logging.getLogger("inflight.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProgram:
    """The program of an engine's process.

    Attributes:
        module: Its name.
        make_setup: Makes its first message.
        ending_seconds: Time limit for its end, after which it is killed.
        has_replicas: The engine is replicas, which the live page shows one by one.
    """

    module: str = ENGINE
    make_setup: Callable[..., EngineSetup] = EngineSetup
    ending_seconds: float = ENDING_SECONDS
    has_replicas: bool = False


LOCAL_ENGINE = EngineProgram()


def serve(
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
    program: EngineProgram = LOCAL_ENGINE,
    ready: Callable[[str], None] | None = None,
) -> int:
    """Run until a signal or a failure ends the server; return the exit code.

    Args:
        record: The file that the engine writes its steps to.
        started: When the command began, on the monotonic clock.
        program: Runs as the engine's process.
        ready: Called with the address when the server is ready; None: log the address.
    """
    logs.configure(log_format, log_level)
    scheduling = with_weights(scheduling, tenants)
    _check_kv_events(settings.kv_events_config, engine_settings)

    make_setup = partial(
        program.make_setup, server=settings, engine=engine_settings, scheduling=scheduling, verbose=verbose
    )

    def setup(folder: Path, before: int) -> bytes:
        own = record if record is None or not before else record.with_stem(f"{record.stem}.{before}")
        return encode(make_setup(serial=before, folder=folder, record=own, log_format=log_format, log_level=log_level))

    def make(folder: Path, announce: Callable[[ToChild], None], dropped: Callable[[str], None]) -> EngineKeeper:
        spawn = partial(Worker, program.module, ending_seconds=program.ending_seconds)
        return EngineKeeper(spawn, partial(setup, folder), announce, dropped)

    server = ServerSetup(
        settings=settings,
        version=__version__,
        log_format=log_format,
        log_level=log_level,
        record=record,
        has_replicas=program.has_replicas,
    )
    registration = Registration((engine_settings.model,), is_pool=False)
    return supervise(server, tenants, make, registration, started=started, ready=ready)


def supervise(
    server: ServerSetup,
    tenants: Tenants,
    make_engines: MakeEngines,
    registration: Registration,
    *,
    started: float,
    ready: Callable[[str], None] | None = None,
) -> int:
    """Listen, and run the server's first process until a signal or a failure ends it; return the exit code.

    Args:
        make_engines: As `Supervisor` has it.
        registration: Of the server's models, for `inflight ps`.
        started: As `serve` has it.
        ready: As `serve` has it.
    """
    settings = server.settings
    check_tracing(settings)
    bound = listen(settings)

    def is_ready(engine: EngineReady | None) -> None:
        registration.write(url(settings, bound))
        if ready is None:
            _log_ready(settings, tenants, url(settings, bound), time.monotonic() - started, engine)
        else:
            ready(url(settings, bound))

    try:
        with registration:
            registration.write(url(settings, bound), is_ready=False)
            return Supervisor(server, tenants, bound, make_engines, is_ready).run()
    finally:
        if settings.uds is not None:
            settings.uds.unlink(missing_ok=True)


def _log_ready(
    settings: ServerSettings, tenants: Tenants, address: str, seconds: float, engine: EngineReady | None
) -> None:
    """Log the server's address, what its start took, and who may use it."""
    taken = ""
    if engine is not None and engine.parts:
        taken = f": {seconds_of_parts(engine.parts)}; engine CPU time {engine.cpu_seconds:.2f} s"
    log.info(f"Ready at {address} after {seconds:.2f} s (docs at /docs){taken}.")
    if not settings.is_loopback and not tenants.required:
        log.info(
            f"Every client that can reach {settings.host} may use it; require keys by --api-key or --api-keys-file."
        )
    if (number := len(tenants.names)) > 1 and settings.isolate_tenants:
        log.info(f"Prefix caches of the {number} tenants are isolated (--share-prefixes would share them).")
    elif number > 1:
        log.info(f"All {number} tenants share cached prefixes and can infer each other's prompts (--share-prefixes).")


def with_weights(scheduling: SchedulingSettings, tenants: Tenants) -> SchedulingSettings:
    """Return the scheduling settings with the tenants' weights of the keys file. Warn if the policy is not fair, which
    alone reads weights: servers of several policies may share a file."""
    weights = tenants.weights
    if not weights:
        return scheduling
    if scheduling.policy != "fair":
        log.warning(
            f"The keys file gives {counted(len(weights), 'tenant')} a weight, which has no effect with --policy "
            f"{scheduling.policy}; --policy fair reads it."
        )
        return scheduling
    return replace(scheduling, tenant_weights={**weights, **scheduling.tenant_weights})


def _check_kv_events(options: KVEventOptions | None, engine: EngineSettings) -> None:
    """Raise SettingsError if KV events are configured but prefix caching is off."""
    if options is not None and not engine.enable_prefix_caching:
        raise SettingsError(
            f"{OPTION} publishes changes of the prefix cache, and --no-prefix-caching leaves it empty; leave one of "
            "them out."
        )
