"""Carries out what `residency` decides: loads and unloads models, and looks again when there may be more to do.

Lives in the event loop of the server's first process.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Protocol

from inflight.server.model_pool.loading import LoadedModel, ModelLoader, PoolModel
from inflight.server.model_pool.pool_counts import PoolCounts
from inflight.server.model_pool.residency import Load, Residency, gib
from inflight.server.processes.worker import WorkerError

LOAD_SECONDS = 1800.0  # after which a load is given up: no other one begins meanwhile
# From a load until the next process is started ahead, which takes a core for seconds: those that waited come first.
PREPARE_SECONDS = 3.0

log = logging.getLogger("inflight.server")


class WaitingForModels(Protocol):
    def serve_waiting(self, name: str) -> None:
        """Give the model to the calls that wait for it: it is loaded, and stays for now."""

    def refuse_waiting(self, name: str, why: str) -> None:
        """Refuse the calls that wait for a model that could not be loaded, or has crashed soon after."""


class ModelKeeper:
    """Keeps in memory what the residency decides.

    Attributes:
        loaded: Models in memory, by name.
    """

    def __init__(
        self,
        models: Mapping[str, PoolModel],
        residency: Residency,
        loader: ModelLoader,
        calls: WaitingForModels,
        counts: PoolCounts,
        ended: Callable[[str], None],
    ):
        """ended: called with the name of a model whose process has ended."""
        self.loaded: dict[str, LoadedModel] = {}
        self._models, self._residency, self._loader = models, residency, loader
        self._calls, self._counts, self._ended = calls, counts, ended
        self._loading: set[asyncio.Task[None]] = set()
        self._unloading: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()
        self._is_closed = False

    async def open(self) -> None:
        """Return when the pinned models are loaded. Raises WorkerError for one that cannot be."""
        self._loader.prepare()
        self.look()
        pinned = [name for name, one in self._models.items() if one.needs.is_pinned]
        while missing := [name for name in pinned if name not in self.loaded]:
            for name in missing:
                if (refusal := self._residency.refusal(name, time.monotonic())) is not None:
                    raise WorkerError(f"The model {name!r} cannot be loaded: {refusal[0]}")
            self._news.clear()
            await self._news.wait()

    def look(self) -> None:
        """Do what is to be done now. To be called whenever something has happened."""
        if self._is_closed:
            return
        now = time.monotonic()
        for decision in self._residency.decide(now):
            if isinstance(decision, Load):
                _start(self._load(decision.name), self._loading)
            else:  # taken out at once: nothing else ends it from now on
                _start(self._unload(decision.name, self.loaded.pop(decision.name)), self._unloading)
        for name in self.loaded:
            if self._residency.state(name) == "loaded":
                self._calls.serve_waiting(name)
        if self._timer is not None:
            self._timer.cancel()
        due = self._residency.next_time(now)
        self._timer = None
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.01, due - now), self.look)
        self._news.set()

    async def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        loaded, self.loaded = tuple(self.loaded.values()), {}
        for task in tuple(self._loading):
            task.cancel()
        tasks = (*self._loading, *self._unloading)
        await asyncio.gather(*tasks, *(one.close() for one in loaded), return_exceptions=True)
        self._loader.close()

    async def _load(self, name: str) -> None:
        began = time.monotonic()
        log.info(f"The model {name!r} is being loaded.")
        try:
            loaded = await asyncio.wait_for(self._loader.load(self._models[name]), LOAD_SECONDS)
        except TimeoutError:
            return self._failed(name, f"It was not loaded within {LOAD_SECONDS:g} s.")
        except Exception as error:
            return self._failed(name, str(error), None if isinstance(error, WorkerError) else error)
        now = time.monotonic()
        self.loaded[name] = loaded
        self._residency.loaded(name, loaded.nbytes, now)
        self._counts.loaded(name, now - began)
        log.info(f"Loaded the model {name!r} in {now - began:.2f} s ({gib(loaded.nbytes)}).")
        if self._residency.nbytes > self._residency.budget:
            log.warning(
                f"Models take {gib(self._residency.nbytes)}, more than the budget of {gib(self._residency.budget)}: "
                "they are larger than was estimated; the next load makes room."
            )
        self._calls.serve_waiting(name)  # before others may have its room
        loaded.worker.ended.add_done_callback(partial(self._has_ended, name, loaded))
        self.look()
        asyncio.get_running_loop().call_later(PREPARE_SECONDS, self._prepare)

    def _prepare(self) -> None:
        """Start the process of the next load, if there may be one."""
        if len(self.loaded) < len(self._models) and not self._is_closed:
            self._loader.prepare()

    def _failed(self, name: str, why: str, fault: Exception | None = None) -> None:
        """Report a model that could not be loaded, and refuse the calls that wait for it. fault: a bug, to be
        logged."""
        log.error(f"The model {name!r} cannot be loaded: {why}", exc_info=fault)
        self._ended(name)
        self._residency.failed(name, why, time.monotonic())
        self._calls.refuse_waiting(name, why)
        self.look()

    async def _unload(self, name: str, loaded: LoadedModel) -> None:
        try:
            await loaded.close()
        except Exception:
            log.exception(f"The model {name!r} was unloaded with an error.")
        self._ended(name)
        log.info(f"The model {name!r} is unloaded.")
        self._residency.ended(name, time.monotonic())
        self.look()

    def _has_ended(self, name: str, loaded: LoadedModel, ended: asyncio.Future[str]) -> None:
        """Take note that a process has ended; one that was unloaded is not among the loaded any more."""
        if self.loaded.get(name) is not loaded:
            return
        del self.loaded[name]
        why = ended.result() or "The model's process has ended."
        log.error(f"The model {name!r} has crashed, and is reloaded at the next call: {why}")
        self._ended(name)
        loaded.lose(f"The model {name!r} has crashed: {why} Send the request again.")
        now = time.monotonic()
        self._residency.ended(name, now, why)
        if self._residency.refusal(name, now) is not None:
            self._calls.refuse_waiting(name, why)
        self.look()


def _start(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
    # In no request's context: what is logged of it is no request's.
    task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
    tasks.add(task)
    task.add_done_callback(tasks.discard)
