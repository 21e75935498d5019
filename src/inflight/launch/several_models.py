"""Start the server of several models (`inflight serve --models`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from inflight import __version__
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.core.types.sampling import Adapter
from inflight.engine.cpu_sharing import Claim, ClaimTable
from inflight.launch.engine_setup import CoreSharing, EngineSetup
from inflight.launch.model_caches import local_path
from inflight.launch.one_model import ENGINE, supervise, with_weights
from inflight.models.errors import ModelError
from inflight.server import logs
from inflight.server.processes.messages import PooledModel, ServerSetup, ToChild, encode
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenants

if TYPE_CHECKING:
    from inflight.server.model_pool.loading import ModelLoader, PoolModel
    from inflight.server.model_pool.pool import ModelPool
    from inflight.server.model_pool.pool_engines import PoolEngines

MEMORY_SHARE = 0.8  # of the free memory, if the models file sets none
MIN_KV_BYTES = 1 << 28

MakeSetup = Callable[..., EngineSetup]  # given what each model has of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class FileModel:
    """One model's table.

    Attributes:
        idle: Seconds without requests after which the model is unloaded; None: not set.
        size: Memory in GiB; None: not set.
    """

    name: str
    aliases: tuple[str, ...]
    pin: bool
    weight: float
    idle: float | None
    size: float | None
    engine: EngineSettings
    scheduling: SchedulingSettings
    server: ServerSettings
    record: Path | None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsFile:
    """The whole file.

    Attributes:
        memory: Budget of all models in GiB; None: derived from the free memory.
        max_wait: Seconds that a request waits for its model to load.
    """

    path: Path
    memory: float | None
    max_wait: float
    default: str | None
    models: tuple[FileModel, ...]


def serve_models(
    settings: ServerSettings,
    file: ModelsFile,
    tenants: Tenants,
    *,
    verbose: bool,
    started: float,
    log_format: logs.Format,
    log_level: str,
) -> int:
    """Run until a signal stops the server. Return the exit code."""
    logs.configure(log_format, log_level)
    models = tuple(
        replace(
            one,
            scheduling=with_weights(one.scheduling, tenants),
            server=one.server.for_tenants(len(tenants.names)),
        )
        for one in file.models
    )

    def make(folder: Path, announce: Callable[[ToChild], None], dropped: Callable[[str], None]) -> PoolEngines:
        from inflight.server.metrics.pool_page import PoolMetrics
        from inflight.server.model_pool.loading import ModelLoader
        from inflight.server.model_pool.pool_engines import PoolEngines
        from inflight.server.processes.worker import Worker

        claims = ClaimTable.create(len(models))
        loader = ModelLoader(partial(Worker, ENGINE, (claims.descriptor,)), announce, dropped)
        make_setup = partial(EngineSetup, folder=folder, verbose=verbose, log_format=log_format, log_level=log_level)
        pool = partial(_pool, replace(file, models=models), make_setup, claims, loader)
        return PoolEngines(pool, PoolMetrics(version=__version__), announce)

    server = ServerSetup(
        settings=settings,
        version=__version__,
        log_format=log_format,
        log_level=log_level,
        models=tuple(PooledModel(one.names, _adapters(one), one.server, local_path(one.engine)) for one in models),
    )
    return supervise(server, tenants, make, [one.engine.model for one in models], started=started)


def _adapters(one: FileModel) -> tuple[Adapter, ...]:
    return tuple(Adapter(name, path) for name, path in one.engine.named_loras)


def _pool(file: ModelsFile, make_setup: MakeSetup, claims: ClaimTable, loader: ModelLoader) -> ModelPool:
    """Make the pool of models. Raises SettingsError, BudgetError."""
    from inflight.server.model_pool.pool import ModelPool

    slots = {one.name: slot for slot, one in enumerate(file.models)}
    budget, sized = _sized(file)
    return ModelPool(
        [
            _pool_model(one, nbytes, make_setup, CoreSharing(claims.descriptor, slots[one.name], one.weight))
            for one, nbytes in sized
        ],
        budget,
        loader,
        max_wait=file.max_wait,
        default=file.default,
        ended=lambda name: claims.write(slots[name], Claim()),
    )


def _pool_model(one: FileModel, nbytes: int, make_setup: MakeSetup, sharing: CoreSharing) -> PoolModel:
    from inflight.server.model_pool.loading import PoolModel
    from inflight.server.model_pool.resident import ModelNeeds

    def setup(serial: int) -> bytes:
        return encode(
            make_setup(
                serial=serial,
                server=one.server,
                engine=one.engine,
                scheduling=one.scheduling,
                record=one.record,
                nbytes=nbytes,
                sharing=sharing,
            )
        )

    return PoolModel(
        names=one.names,
        adapters=_adapters(one),
        needs=ModelNeeds(name=one.name, nbytes=nbytes, is_pinned=one.pin, idle_seconds=one.idle),
        setup=setup,
    )


def _sized(file: ModelsFile) -> tuple[int, Sequence[tuple[FileModel, int]]]:
    """Return the memory budget and each model with its memory, in bytes. Raises SettingsError for a missing model."""
    from inflight.build import memory_needs
    from inflight.execution.memory import GIB, machine_memory

    free = machine_memory()
    budget = int(free.available * MEMORY_SHARE if file.memory is None else file.memory * GIB)
    if budget > free.total:
        raise SettingsError(
            f"--models {file.path}: memory is {budget / GIB:g} GiB, and {free.limited_by} has {free.total / GIB:.1f}; "
            "lower it."
        )
    max_kv = max(MIN_KV_BYTES, budget // (2 * len(file.models)))
    sized = []
    for one in file.models:
        try:
            needs = memory_needs(one.engine, one.scheduling, max_kv)
        except (ModelError, SettingsError) as error:
            raise SettingsError(f"--models {file.path}, [models.{one.name}]: {error}") from None
        nbytes = needs.nbytes if one.size is None else int(one.size * GIB)
        sized.append((replace(one, engine=needs.settings), nbytes))
    return budget, sized
