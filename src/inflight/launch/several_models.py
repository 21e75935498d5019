"""Start the server of several models (`inflight serve --models`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
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
from inflight.launch.running_servers import Registration
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
SPARE_SLOTS = 64  # models that may come while the server runs
FOUND_AT_ONCE = 3  # models on this machine that are given room for keys and values beside each other

log = logging.getLogger("inflight.server")

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
        find: Returns the models on this machine, where those are served; None: models are those of the file.
    """

    path: Path
    memory: float | None
    max_wait: float
    default: str | None
    models: tuple[FileModel, ...]
    find: Callable[[], tuple[FileModel, ...]] | None = None


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

    def of_server(one: FileModel) -> FileModel:
        scheduling, server = with_weights(one.scheduling, tenants), one.server.for_tenants(len(tenants.names))
        return replace(one, scheduling=scheduling, server=server)

    models = tuple(of_server(one) for one in file.models)
    # Files that are found may be deleted while they are not in memory.
    registration = Registration([one.engine.model for one in models] if file.find is None else [], is_pool=True)

    def make(folder: Path, announce: Callable[[ToChild], None], dropped: Callable[[str], None]) -> PoolEngines:
        from inflight.server.metrics.pool_page import PoolMetrics
        from inflight.server.model_pool.loading import ModelLoader
        from inflight.server.model_pool.pool_engines import PoolEngines
        from inflight.server.processes.worker import Worker

        claims = ClaimTable.create(len(models) + (0 if file.find is None else SPARE_SLOTS))
        loader = ModelLoader(partial(Worker, ENGINE, (claims.descriptor,)), announce, dropped)
        make_setup = partial(EngineSetup, folder=folder, verbose=verbose, log_format=log_format, log_level=log_level)
        maker = _PoolMaker(replace(file, models=models), of_server, make_setup, claims, loader, registration)
        find = None if file.find is None else maker.find
        return PoolEngines(maker.pool, PoolMetrics(version=__version__), announce, find)

    server = ServerSetup(
        settings=settings,
        version=__version__,
        log_format=log_format,
        log_level=log_level,
        models=tuple(_pooled(one, file.find is not None) for one in models),
    )
    return supervise(server, tenants, make, registration, started=started)


def _pooled(one: FileModel, is_found: bool) -> PooledModel:
    return PooledModel(one.names, _adapters(one), one.server, local_path(one.engine), is_found)


def _adapters(one: FileModel) -> tuple[Adapter, ...]:
    return tuple(Adapter(name, path) for name, path in one.engine.named_loras)


class _PoolMaker:
    """Makes the pool, and looks for models that come to this machine, or go."""

    def __init__(
        self,
        file: ModelsFile,
        of_server: Callable[[FileModel], FileModel],
        make_setup: MakeSetup,
        claims: ClaimTable,
        loader: ModelLoader,
        registration: Registration,
    ):
        """of_server: Returns a model's settings, as they are on this server. registration: Of models in memory."""
        self._file, self._of_server, self._make_setup = file, of_server, make_setup
        self._claims, self._loader, self._registration = claims, loader, registration
        self._slots = {one.name: slot for slot, one in enumerate(file.models)}  # of the claims
        self._known = {one.name: one for one in file.models}  # those in the pool
        self._refused = [*file.models]  # those that were looked at, and are not in the pool

    def pool(self) -> ModelPool:
        """Make the pool of models. Raises SettingsError, BudgetError."""
        from inflight.server.model_pool.pool import ModelPool

        budget, sized = _sized(self._file)
        return ModelPool(
            [self._model(one, nbytes) for one, nbytes in sized],
            budget,
            self._loader,
            max_wait=self._file.max_wait,
            default=self._file.default,
            ended=self._ended,
        )

    def _ended(self, name: str) -> None:
        self._claims.write(self._slots[name], Claim())
        if self._file.find is not None:
            self._registration.discard(name)

    async def find(self, pool: ModelPool) -> tuple[PooledModel, ...]:
        """Add models that have come, remove those that have gone and are not in memory, and return all of the pool."""
        paths = {name: self._known[name].engine.model for name in pool.names}
        here, sized = await asyncio.to_thread(self._look, paths, pool.budget)
        for name in paths.keys() - {one.name for one in here if one.engine.model == paths.get(one.name)}:
            if pool.remove(name):  # it has gone, or another revision has come in its stead
                del self._slots[name]
        sized = [(one, nbytes) for one, nbytes in sized if one.name not in pool.names]
        free = [slot for slot in range(self._claims.slots) if slot not in self._slots.values()]
        for (one, nbytes), slot in zip(sized, free, strict=False):
            self._slots[one.name], self._known[one.name] = slot, one
            pool.add(self._model(one, nbytes))
        self._refused = [one for one in here if one.name not in pool.names]
        return tuple(_pooled(self._known[name], True) for name in pool.names)

    def _look(
        self, paths: Mapping[str, str | None], budget: int
    ) -> tuple[list[FileModel], list[tuple[FileModel, int]]]:
        """Return the models on this machine; and those of them that are new, with their memory. paths: of the pool's,
        by name."""
        assert self._file.find is not None, "models are found"
        here = [self._of_server(one) for one in self._file.find()]
        before = {*paths.items(), *((one.name, one.engine.model) for one in self._refused)}
        new = [one for one in here if (one.name, one.engine.model) not in before]
        return here, _fitting(new, budget, len(here))

    def _model(self, one: FileModel, nbytes: int) -> PoolModel:
        sharing = CoreSharing(self._claims.descriptor, self._slots[one.name], one.weight)
        begun = partial(self._registration.add, one.name) if self._file.find is not None else lambda: None
        return _pool_model(one, nbytes, self._make_setup, sharing, begun)


def _pool_model(
    one: FileModel, nbytes: int, make_setup: MakeSetup, sharing: CoreSharing, begun: Callable[[], None]
) -> PoolModel:
    """begun: Called when a load begins."""
    from inflight.server.model_pool.loading import PoolModel
    from inflight.server.model_pool.resident import ModelNeeds

    def setup(serial: int) -> bytes:
        begun()
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
    from inflight.execution.memory import GIB, machine_memory

    free = machine_memory()
    budget = int(free.available * MEMORY_SHARE if file.memory is None else file.memory * GIB)
    if budget > free.total:
        raise SettingsError(
            f"--models {file.path}: memory is {budget / GIB:g} GiB, and {free.limited_by} has {free.total / GIB:.1f}; "
            "lower it."
        )
    if file.find is not None:
        return budget, _fitting(file.models, budget, len(file.models))
    max_kv, sized = max(MIN_KV_BYTES, budget // (2 * len(file.models))), []
    for one in file.models:
        try:
            sized.append(_with_memory(one, max_kv))
        except (ModelError, SettingsError) as error:
            raise SettingsError(f"--models {file.path}, [models.{one.name}]: {error}") from None
    return budget, sized


def _fitting(models: Sequence[FileModel], budget: int, count: int) -> list[tuple[FileModel, int]]:
    """Return those of the models on this machine that can be served, with their memory; log why others cannot."""
    max_kv, found = max(MIN_KV_BYTES, budget // (2 * min(count, FOUND_AT_ONCE))), list[tuple[FileModel, int]]()
    for one in models:
        try:
            sized = _with_memory(one, max_kv)
        except (ModelError, SettingsError) as error:
            log.warning(f"{one.name} is not served: {error}")
            continue
        if sized[1] <= budget:
            found.append(sized)
        else:
            log.warning(f"{one.name} is not served: it takes {sized[1] / 2**30:.1f} GiB, more than the budget of all.")
    return found


def _with_memory(one: FileModel, max_kv: int) -> tuple[FileModel, int]:
    """Return a model with its memory in bytes. Raises ModelError, SettingsError."""
    from inflight.build import memory_needs
    from inflight.execution.memory import GIB

    needs = memory_needs(one.engine, one.scheduling, max_kv)
    return replace(one, engine=needs.settings), needs.nbytes if one.size is None else int(one.size * GIB)
