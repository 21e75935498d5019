"""Several models behind one address: calls acquire them, and wait in a queue while their model is not loaded.

Knows calls and their errors; which model is loaded or evicted when is decided by `residency` and carried out by
`keeper`. Lives in the server's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from prometheus_client.core import Metric

from inflight.counted import shortened
from inflight.server.errors import ApiError, invalid
from inflight.server.model_pool.keeper import ModelKeeper
from inflight.server.model_pool.loading import LoadedModel, ModelLoader
from inflight.server.model_pool.pool_counts import PoolCounts, states
from inflight.server.model_pool.pool_model import PoolModel
from inflight.server.model_pool.residency import Residency, ResidencyError
from inflight.server.model_pool.waiting_calls import WaitingCalls
from inflight.server.model_status import ModelStatus
from inflight.server.served import ListedModel, ModelLease


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
        self._max_wait, self._default = max_wait, default
        self._residency = Residency([one.needs for one in models], budget)
        self._counts, self._waiting = PoolCounts(self._models), WaitingCalls(self._models)
        self._keeper = ModelKeeper(self._models, self._residency, loader, self, self._counts, ended)
        self._refusal: ApiError | None = None

    async def open(self) -> None:
        """Returns when the pinned models are loaded. Raises WorkerError for one that cannot be."""
        await self._keeper.open()

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
            loaded, status = self._keeper.loaded.get(one.name), self.status(one.name)
            served = None if loaded is None else loaded.served
            found += [ListedModel(name, one.name, None, served, status) for name in one.names]
            found += [ListedModel(own.name, one.name, own, served, status) for own in one.adapters]
        return found

    async def acquire(self, name: str | None) -> ModelLease:
        own = self._named(name)
        if self._refusal is not None:
            raise self._refusal
        self._keeper.look()  # whoever failed may be tried again by now
        if (leased := self._leased(own)) is not None:
            return leased
        now = time.monotonic()
        if (refusal := self._residency.refusal(own, now)) is not None:
            raise _failed(own, *refusal)
        if (seconds := self._residency.seconds_until(own, now)) > self._max_wait:
            raise self._not_now(own, seconds)
        return await self._awaited(own, now)

    def refuse(self, error: ApiError) -> None:
        self._refusal = error
        for name in self._models:
            self._waiting.refuse(name, error)

    async def close(self) -> None:
        await self._keeper.close()

    # -- operators ------------------------------------------------------------------------------------------------

    def status(self, name: str) -> ModelStatus:
        return self._residency.status(name, time.monotonic())

    async def load(self, name: str) -> ModelStatus:
        """Wait until the model is in memory, at most as long as a call may. Raises ApiError."""
        own = self._named(name)
        self._residency.load(own, time.monotonic())
        (await self.acquire(own)).release()
        return self.status(own)

    def unload(self, name: str) -> ModelStatus:
        """As soon as its calls have ended. Raises ApiError."""
        own = self._named(name)
        try:
            self._residency.unload(own)
        except ResidencyError as error:
            raise ApiError(409, str(error), param="model", code="model_not_unloadable") from None
        self._keeper.look()
        return self.status(own)

    def collect(self) -> Iterator[Metric]:
        """Metrics of the models together."""
        yield from states([self.status(name) for name in self._models], self._residency.budget)
        yield from self._counts.collect()

    async def metrics(self) -> dict[str, bytes]:
        """Pages of the engines that work, by model."""
        loaded = tuple(self._keeper.loaded.items())
        pages = await asyncio.gather(*(one.worker.metrics() for _, one in loaded))
        return {name: page for (name, _), page in zip(loaded, pages, strict=True) if page is not None}

    async def shown(self, asked: bytes) -> dict[str, bytes]:
        """Return what the engines that answer do, by model, as `live.distant` writes it."""
        loaded = tuple(self._keeper.loaded.items())
        told = await asyncio.gather(*(one.worker.shown(asked, name) for name, one in loaded))
        return {name: data for (name, _), data in zip(loaded, told, strict=True) if data is not None}

    # -- what the keeper tells ------------------------------------------------------------------------------------

    def is_there(self, name: str) -> None:
        """Those that wait have it, in their order."""
        for call in self._waiting.take(name):
            self._residency.waits_no_more(name)
            if call.done():
                continue
            try:
                leased = self._leased(name)
            except ApiError as error:
                call.set_exception(error)
                continue
            assert leased is not None, "nobody can have made it give way meanwhile"
            call.set_result(leased)

    def is_not_to_be_had(self, name: str, why: str) -> None:
        """The residency has forgotten those that wait, too."""
        self._waiting.refuse(name, _failed(name, why, self.status(name).seconds))

    # -- lending --------------------------------------------------------------------------------------------------

    def _named(self, name: str | None) -> str:
        """The model's own name, by any of its names. Raises ApiError."""
        name = self._default if name is None else name
        known = ", ".join(self._models)
        if name is None:
            raise invalid(f"The body names no model, and this server has several: {known}.", "model")
        one = self._by_name.get(name)
        if one is None:
            raise ApiError(
                404,
                f"The model {shortened(name)!r} does not exist; this server has {known}.",
                param="model",
                code="model_not_found",
            )
        return one.name

    def _leased(self, name: str) -> ModelLease | None:
        """To one call more, if the model is in memory and stays there. Raises ApiError where it has broken down."""
        loaded, began = self._keeper.loaded.get(name), time.monotonic()
        if loaded is None:
            return None
        if (why := loaded.client.stopped) is not None:  # its process may not know, or ends in a moment
            loaded.worker.break_off(why)
            raise _broken(name, why)
        if not self._residency.enter(name, began):
            return None
        return ModelLease(loaded.served, partial(self._left, name, loaded, began))

    def _left(self, name: str, loaded: LoadedModel, began: float) -> None:
        if self._keeper.loaded.get(name) is loaded:  # else it has ended, and its calls with it
            now = time.monotonic()
            self._residency.left(name, now - began, now)
            self._keeper.look()

    async def _awaited(self, name: str, began: float) -> ModelLease:
        """Raises ApiError."""
        call = self._waiting.join(name)
        self._residency.wait(name, began)
        self._keeper.look()
        try:
            await asyncio.wait((call,), timeout=self._max_wait)
            if not call.done():
                raise self._not_now(name, max(1.0, self._residency.seconds_until(name, time.monotonic())))
            model_lease = call.result()
        except asyncio.CancelledError:
            if call.done() and not call.cancelled() and call.exception() is None:
                call.result().release()
            raise
        finally:
            if self._waiting.leave(name, call):
                self._residency.waits_no_more(name)
                self._keeper.look()
        self._counts.waited(name, time.monotonic() - began)
        return model_lease

    def _not_now(self, name: str, seconds: float) -> ApiError:
        """What a call is told that would wait too long, or has. Its model is loaded in its turn all the same: it is to
        be there when the call comes again."""
        self._counts.refused(name)
        self._residency.ask(name, time.monotonic())
        self._keeper.look()
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


def _failed(name: str, why: str, seconds: float) -> ApiError:
    return ApiError(
        503,
        f"The model {name!r} cannot be loaded: {why} It is tried again in {max(1.0, seconds):.0f} s at the earliest.",
        type="server_error",
        code="model_failed",
        retry_after=max(1.0, seconds),
    )


def _broken(name: str, why: str) -> ApiError:
    return ApiError(
        503,
        f"The model {name!r} has broken down: {why} Ask again: it is loaded anew.",
        type="server_error",
        code="model_failed",
        retry_after=1.0,
    )
