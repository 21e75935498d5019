"""Several models behind one address: lends them to calls, and carries out what `residency` decides.

Knows processes, those that wait, and what they are told; which model is loaded when, and who gives way, `residency`
knows. Lives in the server's event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any

from prometheus_client.core import Metric

from inflight.engine.event_stream import settle
from inflight.server.errors import ApiError, invalid
from inflight.server.model_pool.loading import LoadedModel, ModelLoader
from inflight.server.model_pool.pool_model import PoolModel
from inflight.server.model_pool.residency import Load, ModelStatus, Residency, ResidencyError, gib
from inflight.server.model_pool.waits import Waits, states
from inflight.server.model_pool.worker import WorkerError
from inflight.server.served import Borrowed, ListedModel

# From a load until the next process is started ahead, which takes a core for seconds: those that waited come first.
PREPARE_SECONDS = 3.0

log = logging.getLogger("inflight.server")


class ModelPool:
    """`ServedModels` of which only some are in memory."""

    def __init__(
        self,
        models: Sequence[PoolModel],
        budget: int,
        loader: ModelLoader,
        *,
        max_wait: float,
        default: str | None = None,
        ended: Callable[[str], None] = lambda name: None,
    ):
        """budget: bytes of memory for all of them. max_wait: seconds that a call may wait for its model. default: of
        bodies that name none. ended: told whose process is no more. Raises BudgetError."""
        self._models = {one.name: one for one in models}
        self._by_name = {name: one for one in models for name in (*one.names, *(own.name for own in one.adapters))}
        self._residency = Residency([one.needs for one in models], budget)
        self._loader, self._max_wait, self._default, self._ended = loader, max_wait, default, ended
        self._loaded: dict[str, LoadedModel] = {}
        self._waiting: dict[str, list[asyncio.Future[Borrowed]]] = {one.name: [] for one in models}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()
        self._is_closed = False
        self._refusal: ApiError | None = None
        self.waits = Waits(one.name for one in models)

    async def open(self) -> None:
        """Returns when the pinned models are loaded. Raises WorkerError for one that cannot be."""
        self._loader.prepare()
        self._pump()
        pinned = [name for name, one in self._models.items() if one.needs.is_pinned]
        while missing := [name for name in pinned if name not in self._loaded]:
            for status in map(self.status, missing):
                if status.state == "failed":
                    raise WorkerError(f"The model {status.name!r} cannot be loaded: {status.failure}")
            self._news.clear()
            await self._news.wait()

    # -- `ServedModels` -------------------------------------------------------------------------------------------

    @property
    def residency(self) -> ModelPool:
        return self

    @property
    def stopped(self) -> str | None:
        """A model that breaks down is loaded anew."""
        return None

    def listed(self) -> Sequence[ListedModel]:
        found: list[ListedModel] = []
        for one in self._models.values():
            loaded, status = self._loaded.get(one.name), self.status(one.name)
            served = None if loaded is None else loaded.served
            found += [ListedModel(name, one.name, None, served, status) for name in one.names]
            found += [ListedModel(own.name, one.name, own, served, status) for own in one.adapters]
        return found

    async def borrow(self, name: str | None) -> Borrowed:
        one = self._named(name)
        if self._refusal is not None:
            raise self._refusal
        if (lent := self._lent(one.name)) is not None:
            return lent
        self._pump()  # whoever failed may be tried again by now
        now = time.monotonic()
        if (refusal := self._residency.refusal(one.name, now)) is not None:
            raise _failed(one.name, *refusal)
        seconds = self._residency.seconds_until(one.name, now)
        if seconds > self._max_wait:
            self.waits.refused(one.name)
            raise self._not_now(one.name, seconds)
        return await self._awaited(one.name, now)

    def refuse(self, error: ApiError) -> None:
        self._refusal = error
        for name in self._models:
            self._tell_waiting(name, error)

    async def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        loaded, self._loaded = tuple(self._loaded.values()), {}
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, *(one.close() for one in loaded), return_exceptions=True)
        await self._loader.close()

    # -- operators ------------------------------------------------------------------------------------------------

    def status(self, name: str) -> ModelStatus:
        return self._residency.status(name, time.monotonic())

    @property
    def budget(self) -> int:
        return self._residency.budget

    async def load(self, name: str) -> ModelStatus:
        """Waits until the model is in memory, as long as a call may. Raises ApiError."""
        own = self._named(name).name
        self._residency.load(own, time.monotonic())
        self._pump()
        (await self.borrow(own)).release()
        return self.status(own)

    def unload(self, name: str) -> ModelStatus:
        """As soon as its calls have ended. Raises ApiError."""
        own = self._named(name).name
        try:
            self._residency.unload(own)
        except ResidencyError as error:
            raise ApiError(409, str(error), param="model", code="model_not_unloadable") from None
        self._pump()
        return self.status(own)

    def collect(self) -> Iterator[Metric]:
        """Metrics of the models together."""
        yield from states([self.status(name) for name in self._models], self.budget)
        yield from self.waits.collect()

    async def metrics(self) -> dict[str, bytes]:
        """Pages of the engines that work, by model."""
        loaded = tuple(self._loaded.items())
        pages = await asyncio.gather(*(one.worker.metrics() for _, one in loaded))
        return {name: page for (name, _), page in zip(loaded, pages, strict=True) if page is not None}

    # -- lending --------------------------------------------------------------------------------------------------

    def _named(self, name: str | None) -> PoolModel:
        """Raises ApiError."""
        name = self._default if name is None else name
        known = ", ".join(self._models)
        if name is None:
            raise invalid(f"The body names no model, and this server has several: {known}.", "model")
        one = self._by_name.get(name)
        if one is None:
            raise ApiError(
                404,
                f"The model {name[:100]!r} does not exist; this server has {known}.",
                param="model",
                code="model_not_found",
            )
        return one

    def _lent(self, name: str) -> Borrowed | None:
        """To one call more, if the model is in memory and stays there."""
        began = time.monotonic()
        if not self._residency.enter(name, began):
            return None
        loaded = self._loaded[name]
        return Borrowed(loaded.served, partial(self._left, name, loaded, began))

    def _left(self, name: str, loaded: LoadedModel, began: float) -> None:
        if self._loaded.get(name) is loaded:  # else it has ended, and its calls with it
            now = time.monotonic()
            self._residency.left(name, now - began, now)
            self._pump()

    async def _awaited(self, name: str, began: float) -> Borrowed:
        """Raises ApiError."""
        lent: asyncio.Future[Borrowed] = asyncio.get_running_loop().create_future()
        self._waiting[name].append(lent)
        self._residency.wait(name, began)
        self._pump()
        try:
            await asyncio.wait((lent,), timeout=self._max_wait)
        except asyncio.CancelledError:
            if lent.done() and lent.exception() is None:
                lent.result().release()
            raise
        finally:
            if lent in self._waiting[name]:
                self._waiting[name].remove(lent)
                self._residency.waits_no_more(name)
                self._pump()
        now = time.monotonic()
        if not lent.done():
            self.waits.refused(name)
            raise self._not_now(name, max(1.0, self._residency.seconds_until(name, now)))
        borrowed = lent.result()
        self.waits.waited(name, now - began)
        return borrowed

    def _tell_waiting(self, name: str, error: ApiError) -> None:
        """The residency has forgotten them, or is told by each."""
        for lent in tuple(self._waiting[name]):
            settle(lent, error)

    def _not_now(self, name: str, seconds: float) -> ApiError:
        state = self._residency.state(name)
        doing = "is being loaded" if state == "loading" else "is not in memory, and others are in its place"
        return ApiError(
            503,
            f"The model {name!r} {doing}: it will be ready in about {seconds:.0f} s, and a call waits "
            f"{self._max_wait:g} s at most (max-wait in the models file); try again then.",
            type="server_error",
            code="model_loading",
            retry_after=max(1.0, seconds),
        )

    # -- carrying out ---------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """What is to be done now, and when to look again."""
        if self._is_closed:
            return
        now = time.monotonic()
        for decision in self._residency.decide(now):
            work = self._load if isinstance(decision, Load) else self._unload
            self._start(work(decision.name))
        if self._timer is not None:
            self._timer.cancel()
        due = self._residency.next_time(now)
        self._timer = None
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.01, due - now), self._pump)
        self._news.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        # In no request's context: what is logged of it is no request's.
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load(self, name: str) -> None:
        began = time.monotonic()
        log.info(f"The model {name!r} is being loaded.")
        try:
            loaded = await self._loader.load(self._models[name])
        except Exception as error:
            return self._failed(name, error)
        now = time.monotonic()
        self._loaded[name] = loaded
        self._residency.loaded(name, loaded.nbytes, now)
        self.waits.loaded(name, now - began)
        log.info(f"The model {name!r} is in memory after {now - began:.2f} s ({gib(loaded.nbytes)}).")
        if self._residency.nbytes > self._residency.budget:
            log.warning(
                f"Models take {gib(self._residency.nbytes)}, more than the budget of {gib(self._residency.budget)}: "
                "they are larger than was estimated; the next load makes room."
            )
        for lent in tuple(self._waiting[name]):
            self._waiting[name].remove(lent)
            self._residency.waits_no_more(name)
            if not lent.done():
                borrowed = self._lent(name)
                assert borrowed is not None, "it was loaded this moment"
                lent.set_result(borrowed)
        loaded.worker.ended.add_done_callback(partial(self._has_ended, name, loaded))
        self._pump()
        asyncio.get_running_loop().call_later(PREPARE_SECONDS, self._prepare)

    def _prepare(self) -> None:
        """For the next load, if there may be one."""
        if len(self._loaded) < len(self._models) and not self._is_closed:
            self._loader.prepare()

    def _failed(self, name: str, error: Exception) -> None:
        if not isinstance(error, WorkerError):
            log.error(f"The model {name!r} cannot be loaded.", exc_info=error)
        else:
            log.error(f"The model {name!r} cannot be loaded: {error}")
        now = time.monotonic()
        self._residency.failed(name, str(error), now)
        waiting, self._waiting[name] = self._waiting[name], []
        for lent in waiting:
            settle(lent, _failed(name, str(error), self.status(name).seconds))
        self._pump()

    async def _unload(self, name: str) -> None:
        loaded = self._loaded.pop(name)
        await loaded.close()
        self._ended(name)
        log.info(f"The model {name!r} is unloaded.")
        self._residency.ended(name, time.monotonic())
        self._pump()

    def _has_ended(self, name: str, loaded: LoadedModel, ended: asyncio.Future[str]) -> None:
        """Its process is gone; who asked for that has taken it out."""
        if self._loaded.get(name) is not loaded:
            return
        del self._loaded[name]
        why = ended.result() or "The model's process has ended."
        log.error(f"The model {name!r} works no more, and is loaded anew when it is called: {why}")
        self._ended(name)
        self._start(loaded.lost(f"The model {name!r} has broken down: {why} Ask again."))
        self._residency.ended(name, time.monotonic(), why)
        for lent in tuple(self._waiting[name]):  # none unless it failed: then the residency has forgotten them
            if self._residency.refusal(name, time.monotonic()) is not None:
                self._waiting[name].remove(lent)
                settle(lent, _failed(name, why, self.status(name).seconds))
        self._pump()


def _failed(name: str, why: str, seconds: float) -> ApiError:
    return ApiError(
        503,
        f"The model {name!r} cannot be loaded: {why} It is tried again in {max(1.0, seconds):.0f} s at the earliest.",
        type="server_error",
        code="model_failed",
        retry_after=max(1.0, seconds),
    )
