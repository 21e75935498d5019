"""Carries out what `residency` decides: loads and unloads models, and looks again when there may be more to do.

Knows processes and how they end; not calls: their queue (`pool`) is notified when a model is loaded and when it cannot
be. Lives in the server's event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Protocol

from inflight.server.model_pool.loading import LoadedModel, ModelLoader
from inflight.server.model_pool.pool_counts import PoolCounts
from inflight.server.model_pool.pool_model import PoolModel
from inflight.server.model_pool.residency import Load, Residency, gib
from inflight.server.model_pool.worker import WorkerError

LOAD_SECONDS = 1800.0  # after which a load is given up: no other one begins meanwhile
# From a load until the next process is started ahead, which takes a core for seconds: those that waited come first.
PREPARE_SECONDS = 3.0

log = logging.getLogger("inflight.server")


class CallQueue(Protocol):
    """The calls that wait for models."""

    def is_there(self, name: str) -> None:
        """The model is loaded, and stays for now. Told again and again."""

    def is_not_to_be_had(self, name: str, why: str) -> None:
        """It could not be loaded, or has broken down at once."""


class ModelKeeper:
    """loaded: models that are in memory, by name."""

    def __init__(
        self,
        models: Mapping[str, PoolModel],
        residency: Residency,
        loader: ModelLoader,
        call_queue: CallQueue,
        counts: PoolCounts,
        ended: Callable[[str], None],
    ):
        """ended: told whose process is no more."""
        self.loaded: dict[str, LoadedModel] = {}
        self._models, self._residency, self._loader = models, residency, loader
        self._call_queue, self._counts, self._ended = call_queue, counts, ended
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()
        self._is_closed = False

    async def open(self) -> None:
        """Returns when the pinned models are loaded. Raises WorkerError for one that cannot be."""
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
        """What is to be done now, and when to look again. To be called whenever something has happened."""
        if self._is_closed:
            return
        now = time.monotonic()
        for decision in self._residency.decide(now):
            if isinstance(decision, Load):
                self._start(self._load(decision.name))
            else:  # taken out at once: from now on nobody else ends it
                self._start(self._unload(decision.name, self.loaded.pop(decision.name)))
        for name in self.loaded:
            if self._residency.state(name) == "loaded":
                self._call_queue.is_there(name)
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
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, *(one.close() for one in loaded), return_exceptions=True)
        await self._loader.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        # In no request's context: what is logged of it is no request's.
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
        log.info(f"The model {name!r} is in memory after {now - began:.2f} s ({gib(loaded.nbytes)}).")
        if self._residency.nbytes > self._residency.budget:
            log.warning(
                f"Models take {gib(self._residency.nbytes)}, more than the budget of {gib(self._residency.budget)}: "
                "they are larger than was estimated; the next load makes room."
            )
        self._call_queue.is_there(name)  # before others may have its room
        loaded.worker.ended.add_done_callback(partial(self._has_ended, name, loaded))
        self.look()
        asyncio.get_running_loop().call_later(PREPARE_SECONDS, self._prepare)

    def _prepare(self) -> None:
        """For the next load, if there may be one."""
        if len(self.loaded) < len(self._models) and not self._is_closed:
            self._loader.prepare()

    def _failed(self, name: str, why: str, fault: Exception | None = None) -> None:
        """fault: a mistake of ours."""
        log.error(f"The model {name!r} cannot be loaded: {why}", exc_info=fault)
        self._residency.failed(name, why, time.monotonic())
        self._call_queue.is_not_to_be_had(name, why)
        self.look()

    async def _unload(self, name: str, loaded: LoadedModel) -> None:
        try:
            await loaded.close()
        except Exception:
            log.exception(f"The model {name!r} has not ended as it should.")
        self._ended(name)
        log.info(f"The model {name!r} is unloaded.")
        self._residency.ended(name, time.monotonic())
        self.look()

    def _has_ended(self, name: str, loaded: LoadedModel, ended: asyncio.Future[str]) -> None:
        """Its process is gone; who asked for that has taken it out."""
        if self.loaded.get(name) is not loaded:
            return
        del self.loaded[name]
        why = ended.result() or "The model's process has ended."
        log.error(f"The model {name!r} works no more, and is loaded anew when it is called: {why}")
        self._ended(name)
        self._start(loaded.lost(f"The model {name!r} has broken down: {why} Ask again."))
        now = time.monotonic()
        self._residency.ended(name, now, why)
        if self._residency.refusal(name, now) is not None:
            self._call_queue.is_not_to_be_had(name, why)
        self.look()
