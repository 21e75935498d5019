"""Several models behind one address: calls acquire them, and wait for one that is not in memory.

Which model is loaded when, and which is evicted, `residency` decides and `keeper` carries out. Lives in the event loop
of the server's first process.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from prometheus_client.core import Metric

from inflight.counted import shortened
from inflight.engine.event_stream import set_outcome
from inflight.server.common.aliases import served_name
from inflight.server.errors import ApiError, invalid
from inflight.server.model_pool.keeper import ModelKeeper
from inflight.server.model_pool.loading import LoadedModel, ModelLoader, PoolModel
from inflight.server.model_pool.pool_counts import PoolCounts, states
from inflight.server.model_pool.residency import Residency, ResidencyError
from inflight.server.model_status import ModelStatus


class ModelPool:
    """Models of which only some are in memory."""

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
        """Make a pool.

        Args:
            budget: Bytes of memory for all models together.
            max_wait: Seconds that a call may wait for its model.
            default: The model of bodies that name none.
            ended: Called with the name of a model whose process has ended.

        Raises:
            BudgetError: Some model could never be loaded.
        """
        self._models = {one.name: one for one in models}
        self._by_name = {name: one for one in models for name in (*one.names, *(own.name for own in one.adapters))}
        self._max_wait, self._default = max_wait, default
        self._residency = Residency([one.needs for one in models], budget)
        self._counts, self._waiting = PoolCounts(self._models), _WaitingCalls()
        self._keeper = ModelKeeper(self._models, self._residency, loader, self, self._counts, ended)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the models' own names."""
        return tuple(self._models)

    @property
    def budget(self) -> int:
        return self._residency.budget

    def add(self, model: PoolModel) -> None:
        """Add a model. Raises BudgetError where it could never be loaded."""
        self._residency.add(model.needs)
        self._counts.add(model.name)
        self._models[model.name] = model
        self._by_name |= dict.fromkeys(model.names, model)

    def remove(self, name: str) -> bool:
        """Remove a model that is not in memory, and that no call waits for; return whether it was one."""
        if not self._residency.remove(name):
            return False
        removed = self._models.pop(name)
        self._by_name = {known: one for known, one in self._by_name.items() if one is not removed}
        return True

    async def open(self) -> None:
        """Return when the pinned models are loaded. Raises WorkerError for one that cannot be."""
        await self._keeper.open()

    async def close(self) -> None:
        await self._keeper.close()

    # -- calls ----------------------------------------------------------------------------------------------------

    async def acquire(self, name: str | None, keep_alive: float | None = None) -> PoolLease:
        """Return a lease of the model with this name, when it is in memory.

        Args:
            keep_alive: Seconds without calls for which the model stays afterwards; None: as its settings say.

        Raises:
            ApiError: The model cannot be had now, or is unknown.
        """
        own = self._named(name)
        self._keeper.look()  # one that failed may be tried again by now
        self._residency.keep_alive(own, keep_alive)  # not before: a model of 0 s would be unloaded ahead of this call
        if (lease := self._leased(own)) is not None:
            return lease
        now = time.monotonic()
        if (refusal := self._residency.refusal(own, now)) is not None:
            raise _failed(own, *refusal)
        if (seconds := self._residency.seconds_until(own, now)) > self._max_wait:
            raise self._not_now(own, seconds, f"longer than max-wait ({self._max_wait:g} s) in the models file")
        return await self._awaited(own, now)

    def break_off(self, name: str, serial: int, why: str) -> None:
        """End an engine that answers no more, unless it has ended; the next call loads it again."""
        loaded = self._keeper.loaded.get(name)
        if loaded is not None and loaded.serial == serial:
            loaded.worker.break_off(why)

    def client_lost(self, client: str) -> None:
        """Abort the requests of an API process that has ended."""
        for one in self._keeper.loaded.values():
            one.worker.client_lost(client)

    # -- operators ------------------------------------------------------------------------------------------------

    def status(self, name: str) -> ModelStatus:
        return self._residency.status(name, time.monotonic())

    def statuses(self) -> tuple[ModelStatus, ...]:
        return tuple(self.status(name) for name in self._models)

    async def load(self, name: str) -> ModelStatus:
        """Wait until the model is in memory, at most as long as a call may. Raises ApiError."""
        own = self._named(name)
        self._residency.load(own, time.monotonic())
        (await self.acquire(own)).release()
        return self.status(own)

    def unload(self, name: str) -> ModelStatus:
        """Unload the model as soon as it has no call. Raises ApiError."""
        own = self._named(name)
        try:
            self._residency.unload(own)
        except ResidencyError as error:
            raise ApiError(409, str(error), param="model", code="model_not_unloadable") from None
        self._keeper.look()
        return self.status(own)

    def collect(self) -> Iterator[Metric]:
        """Return metrics of the models together."""
        yield from states(self.statuses(), self._residency.budget)
        yield from self._counts.collect()

    async def metrics(self) -> dict[str, bytes]:
        """Return the pages of the engines that work, by model."""
        loaded = tuple(self._keeper.loaded.items())
        pages = await asyncio.gather(*(one.worker.metrics() for _, one in loaded))
        return {name: page for (name, _), page in zip(loaded, pages, strict=True) if page is not None}

    async def shown(self, asked: bytes) -> dict[str, bytes]:
        """Return what the engines that answer do, by model, as `live.distant` writes it."""
        loaded = tuple(self._keeper.loaded.items())
        shown = await asyncio.gather(*(one.worker.shown(asked, name) for name, one in loaded))
        return {name: data for frames in shown for name, data in frames.items()}

    async def reset_prefix_caches(self) -> tuple[int, str | None, bool]:
        """Drop the cached prefixes of the models in memory, as `PrefixCacheReset` has it: all that have no work."""
        loaded = tuple(self._keeper.loaded.items())
        resets = await asyncio.gather(*(one.worker.reset_prefix_cache() for _, one in loaded))
        done = [(name, reset) for (name, _), reset in zip(loaded, resets, strict=True) if reset is not None]
        failed = [f"{name}: {reset.error}" for name, reset in done if reset.error is not None]
        is_busy = any(reset.is_busy for _, reset in done)
        return sum(reset.blocks for _, reset in done), " ".join(failed) or None, is_busy

    # -- calls that wait, of which the keeper reports ---------------------------------------------------------------

    def serve_waiting(self, name: str) -> None:
        """Give the model to those that wait for it, in their order."""
        for call in self._waiting.take(name):
            self._residency.end_wait(name)
            if not call.done():
                lease = self._leased(name)
                assert lease is not None, "nothing can have evicted it meanwhile"
                call.set_result(lease)

    def refuse_waiting(self, name: str, why: str) -> None:
        """Refuse those that wait; the residency does not count them any more."""
        self._waiting.refuse(name, _failed(name, why, self.status(name).seconds))

    # -- leases ---------------------------------------------------------------------------------------------------

    def _named(self, name: str | None) -> str:
        """Return the model's own name, by any of its names. Raises ApiError."""
        name = self._default if name is None else name
        known = ", ".join(self._models)
        if name is None:
            raise invalid(f"The body names no model, and this server has several: {known}.", "model")
        one = self._by_name.get(served_name(name, self._by_name) or "")
        if one is None:
            raise ApiError(
                404,
                f"The model {shortened(name)!r} does not exist; this server has {known}.",
                param="model",
                code="model_not_found",
            )
        return one.name

    def _leased(self, name: str) -> PoolLease | None:
        """Return one more lease, if the model is in memory and stays there."""
        loaded, began = self._keeper.loaded.get(name), time.monotonic()
        if loaded is None or not self._residency.enter(name, began):
            return None
        return PoolLease(name, loaded.serial, partial(self._left, name, loaded, began))

    def _left(self, name: str, loaded: LoadedModel, began: float) -> None:
        if self._keeper.loaded.get(name) is loaded:  # else it has ended, and its calls with it
            now = time.monotonic()
            self._residency.left(name, now - began, now)
            self._keeper.look()

    async def _awaited(self, name: str, began: float) -> PoolLease:
        """Raises ApiError."""
        call = self._waiting.join(name)
        self._residency.wait(name, began)
        self._keeper.look()
        try:
            await asyncio.wait((call,), timeout=self._max_wait)
            if not call.done():
                seconds = max(1.0, self._residency.seconds_until(name, time.monotonic()))
                raise self._not_now(name, seconds, f"and the call has waited for max-wait ({self._max_wait:g} s)")
            lease = call.result()
        except asyncio.CancelledError:
            if call.done() and not call.cancelled() and call.exception() is None:
                call.result().release()
            raise
        finally:
            if self._waiting.leave(name, call):
                self._residency.end_wait(name)
                self._keeper.look()
        self._counts.waited(name, time.monotonic() - began)
        return lease

    def _not_now(self, name: str, seconds: float, why: str) -> ApiError:
        """Return the error of a call that would wait too long, or has. Its model is loaded in its turn all the same, so
        that it is there when the call comes again."""
        self._counts.refused(name)
        self._residency.ask(name, time.monotonic())
        self._keeper.look()
        state = self._residency.state(name)
        doing = "is being loaded" if state == "loading" else "cannot be loaded now, because other models use the memory"
        return ApiError(
            503,
            f"The model {name!r} {doing}: about {seconds:.0f} s until it is ready, {why}; "
            f"try again in {max(1.0, seconds):.0f} s.",
            type="server_error",
            code="model_loading",
            retry_after=max(1.0, seconds),
        )


class PoolLease:
    """Keeps a model in memory until it is released."""

    __slots__ = ("_release", "name", "serial")

    def __init__(self, name: str, serial: int, release: Callable[[], None]):
        """serial: of the engine's process."""
        self.name, self.serial = name, serial
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """End the lease; may be called twice."""
        release, self._release = self._release, None
        if release is not None:
            release()


class _WaitingCalls:
    """The calls that wait for each model, in the order in which they came."""

    def __init__(self) -> None:
        self._lines = defaultdict[str, list[asyncio.Future[PoolLease]]](list)

    def has(self, name: str) -> bool:
        return bool(self._lines[name])

    def join(self, name: str) -> asyncio.Future[PoolLease]:
        call: asyncio.Future[PoolLease] = asyncio.get_running_loop().create_future()
        self._lines[name].append(call)
        return call

    def leave(self, name: str, call: asyncio.Future[PoolLease]) -> bool:
        """Remove a call; return whether it waited still."""
        if call not in self._lines[name]:
            return False
        self._lines[name].remove(call)
        return True

    def take(self, name: str) -> list[asyncio.Future[PoolLease]]:
        """Remove all that wait for the model, and return them."""
        taken, self._lines[name] = self._lines[name], []
        return taken

    def refuse(self, name: str, error: ApiError) -> None:
        """Remove all that wait for the model, and raise the error in them."""
        for call in self.take(name):
            set_outcome(call, error)


def _failed(name: str, why: str, seconds: float) -> ApiError:
    return ApiError(
        503,
        f"The model {name!r} cannot be loaded: {why} It is tried again in {max(1.0, seconds):.0f} s at the earliest.",
        type="server_error",
        code="model_failed",
        retry_after=max(1.0, seconds),
    )
