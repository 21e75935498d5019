"""Start the server of `inflight serve --replicas`: HTTP in this process, engines in Ray's replicas."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec

from inflight import __version__
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.counted import counted
from inflight.extras import pip_install
from inflight.launch.engine_loading import Doing, log_line
from inflight.launch.one_model import with_weights
from inflight.launch.pool import serve_pool
from inflight.ray.ray_address import greet_head
from inflight.ray.replica_setup import ReplicaSetup, pool_setups
from inflight.ray.scale import Replicas
from inflight.server import logs
from inflight.server.loading import make_prompts, make_served
from inflight.server.metrics.pool_page import PoolMetrics
from inflight.server.preprocessing.pool import PreprocessingPool
from inflight.server.preprocessing.worker import loaded as loaded_text
from inflight.server.served import OneModel
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenants

if TYPE_CHECKING:
    from inflight.ray.replica_handle import ReplicaHandle

SERIAL = 1  # of the only process that makes requests


def serve_replicas(
    settings: ServerSettings,
    engine: EngineSettings,
    scheduling: SchedulingSettings,
    tenants: Tenants,
    *,
    replicas: Replicas,
    verbose: bool,
    started: float,
    log_format: logs.Format,
    log_level: str,
) -> int:
    """Run until a signal stops the server. Return the exit code."""
    preprocessing = PreprocessingPool()
    logs.configure(log_format, log_level)
    metrics = PoolMetrics(version=__version__, label="replica")
    setup = ReplicaSetup(settings, engine, with_weights(scheduling, tenants), verbose)

    def load(doing: Doing, loop: asyncio.AbstractEventLoop) -> OneModel:
        doing("starting Ray and the replicas")
        where = "and a Ray of this machine" if replicas.address is None else f"on Ray at {replicas.address}"
        log_line(f"Starting {counted(replicas.started, 'replica')} {where}; half a minute, or more on a busy machine.")
        handle = metrics.pool = _started(setup, replicas)
        return asyncio.run_coroutine_threadsafe(served_by(handle, setup, preprocessing), loop).result()

    return serve_pool(settings, tenants, metrics, load, started=started)


def _started(setup: ReplicaSetup, replicas: Replicas) -> ReplicaHandle:
    """Start Ray and the replicas. Raises SettingsError, ModelError."""
    from inflight.build import model_folder

    model_folder(setup.engine)  # checks the model before Ray is started
    try:
        greet_head(replicas.address)
        from inflight.ray.deployment import pools, with_core_share
        from inflight.ray.own_ray import OwnRay
    except ImportError as error:
        raise SettingsError(
            f"--replicas needs Ray Serve, and the installed Ray cannot be used ({error}); "
            f"{pip_install('ray')}, or serve one engine."
        ) from None
    is_local = replicas.address is None
    if is_local:
        setup = with_core_share(setup, replicas)
    setups = pool_setups(setup, replicas.prefill is not None, is_local)
    return OwnRay(replicas.address, replicas.limit).run(pools(setups, replicas))


async def served_by(handle: ReplicaHandle, setup: ReplicaSetup, preprocessing: PreprocessingPool) -> OneModel:
    """Make the served model of the replicas. Raises PreprocessingError."""
    from inflight.build import model_folder

    folder = await asyncio.to_thread(lambda: model_folder(setup.engine))
    preprocessing.load(folder)
    zero = time.monotonic()  # arrivals count from here; replicas receive ages, since their clocks differ
    described = msgspec.structs.replace(await handle.describe(), clock_zero=zero)
    text = await asyncio.to_thread(lambda: loaded_text(folder))
    prompts, client = make_prompts(*text, described, SERIAL), handle.client(zero, setup.scheduling.weighs_tenants)
    made = await asyncio.to_thread(make_served, setup.server, described, client, preprocessing, prompts, text[0])
    return OneModel(made)
