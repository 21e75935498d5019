"""The service: an engine that is loading, ready, draining or broken, and the calls in flight.

Endpoints and batch jobs ask the engine through it, so that both are counted, logged and ended alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from inflight.counted import counted
from inflight.server.answer_memory import AnswerMemory
from inflight.server.call_counts import CallCounts
from inflight.server.common.prepared import Call, EndpointName
from inflight.server.errors import ApiError
from inflight.server.generating import GONE, LAST_WORDS, Delivery, Generation, Keep
from inflight.server.served import ModelLease, ServedModels, model_named
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenant

ANSWER_BYTES = 80 << 20  # of memory that answers may take, of all calls together
State = Literal["loading", "ready", "draining", "failed"]


@dataclass(frozen=True, slots=True)
class Ended:
    """A call that has ended, for log and metrics.

    Attributes:
        generation: None where the engine did not accept it.
        status: That its client got.
        error: Why it was not served.
        refused_by_engine: It was counted there, too.
    """

    call: Call
    generation: Generation | None
    status: int
    seconds: float
    error: ApiError | None = None
    refused_by_engine: bool = False


class Service:
    def __init__(self, settings: ServerSettings, report: Callable[[Ended], None], counts: CallCounts | None = None):
        """Start without models.

        Args:
            report: Called once for every call that has ended, for the log.
            counts: Shared, where there are more processes.
        """
        self.settings = settings
        self._state: State = "loading"
        self.doing = "starting"  # while loading: what; once failed: why
        self._report = report
        self._models: ServedModels | None = None
        self.counts = counts or CallCounts()  # of clients' calls
        self._open: set[Delivery] = set()
        self.answer_memory = AnswerMemory(ANSWER_BYTES, self._open)
        self._nothing_left = asyncio.Event()
        self._hurry = asyncio.Event()

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Return the state that clients see; this process is ready once all that share its address are."""
        return "loading" if self._state == "ready" and not self.counts.all_ready else self._state

    def ready(self, models: ServedModels) -> None:
        self._models, self.doing = models, "waiting for its other API processes"
        if self._state == "loading":
            self._state = "ready"

    def lose_engine(self) -> ServedModels | None:
        """Wait for the next engine, since the last one has ended; return its models."""
        models, self._models = self._models, None
        if self._state == "ready":
            self._state = "loading"
        self.doing = "starting the engine again"
        return models

    def fail(self, why: str) -> None:
        self._state, self.doing = "failed", why

    @property
    def loaded(self) -> ServedModels | None:
        return self._models

    @property
    def models(self) -> ServedModels:
        """Return the models, for new work. Raises ApiError as `check`."""
        self.check()
        assert self._models is not None, "checked"
        return self._models

    def check(self) -> None:
        """Raise ApiError where no new work is taken: 503 unless models are ready, 500 when they have crashed."""
        stopped = self._models.stopped if self._models is not None else None
        if stopped is not None or self.state == "failed":
            raise ApiError(500, stopped or self.doing, type="server_error", code="engine_stopped")
        if self.state == "draining":
            raise self._draining()
        if self._models is None or self.state == "loading":
            raise self.not_loaded()

    async def acquire(
        self, endpoint: EndpointName, body: bytes, tenant: Tenant | None = None, keep_alive: float | None = None
    ) -> ModelLease:
        """Acquire the model that a body is for.

        Args:
            keep_alive: Seconds for which the model stays in memory afterwards; None: as its settings say.
            tenant: Among its calls it counts while it waits for the model; None: it counts already, or never does.

        Returns:
            A lease, to be released, or passed to `open`.

        Raises:
            ApiError: As `check`; 429 where too many calls are in flight; the model cannot be loaded.
        """
        models = self.models
        if models.residency is None:
            return await models.acquire(None)
        name = await model_named(endpoint, body)
        if tenant is None:
            return await models.acquire(name)
        self._enter(tenant)
        try:
            return await models.acquire(name, keep_alive)
        finally:
            self._leave(tenant)

    def _draining(self) -> ApiError:
        return ApiError(
            503,
            f"The server is shutting down and accepts no new calls; try again in {self.settings.drain_timeout:g} s, "
            "or use another server.",
            type="server_error",
            code="draining",
            retry_after=self.settings.drain_timeout,
        )

    def not_loaded(self) -> ApiError:
        return ApiError(
            503,
            f"The server is {self.doing}; try again in 1 s (GET /readyz shows when it is ready).",
            type="server_error",
            code="loading",
            retry_after=1.0,
        )

    async def drain(self) -> int:
        """Take no new work, and wait until nothing is in flight, or the time is over; then end what is left. Return how
        many calls that were."""
        self._state = "draining"
        if self._models is not None:
            self._models.refuse(self._draining())
        await self._until_nothing_left(self.settings.drain_timeout)
        left = self.in_flight
        for delivery in tuple(self._open):
            delivery.end(
                ApiError(
                    503,
                    "The server shut down before the call finished (--drain-timeout); send it again.",
                    type="server_error",
                    code="draining",
                )
            )
        self._hurry.clear()
        await self._until_nothing_left(LAST_WORDS)
        return left

    def hurry(self) -> None:
        """Do not wait for what is in flight."""
        self._hurry.set()

    async def _until_nothing_left(self, seconds: float) -> None:
        if not self.in_flight:
            return
        waits = [asyncio.ensure_future(event.wait()) for event in (self._nothing_left, self._hurry)]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for one in waits:
            one.cancel()

    @property
    def in_flight(self) -> int:
        """Return the calls of clients of this process; lines of batch jobs are run again at the next start, and no
        client waits for them."""
        return self.counts.mine

    # -- calls ----------------------------------------------------------------------------------------------------

    async def open(
        self, call: Call, model_lease: ModelLease, *, batch: bool = False, keep: Keep | None = None
    ) -> Generation:
        """Open a call at the engine of a model.

        Args:
            model_lease: Released when the call has ended, or is refused.
            batch: It is a line of a batch job: not among clients' calls, and without a time limit.
            keep: Stores its answer.

        Returns:
            A generation, which must be closed.

        Raises:
            ApiError: It is refused.
        """
        started, served, entered, generation = time.monotonic(), model_lease.served, False, None
        try:
            self.check()
            if not batch:
                self._enter(call.tenant)
                entered = True
            names = served.id_names if call.names_are_ids else served.names
            timeout = None if batch else self.settings.request_timeout  # a job has its completion window
            generation = Generation(call, served.tokenizer, names, timeout, keep)
            if not batch:
                self._watch(generation)
            await generation.open(served.bridge)
        except BaseException as error:
            model_lease.release()
            if generation is not None:
                generation.release()
                self._open.discard(generation)
            if entered:
                self._leave(call.tenant)
            seconds = time.monotonic() - started
            if isinstance(error, ApiError):
                self._report(Ended(call, None, error.status, seconds, error, entered or batch))
            elif isinstance(error, asyncio.CancelledError):
                self._report(Ended(call, None, GONE, seconds, None, True))  # no request was refused
            raise

        def closed(status: int, error: ApiError | None) -> None:
            model_lease.release()
            self._open.discard(generation)
            if not batch:
                self._leave(call.tenant)
            self._report(Ended(call, generation, status, time.monotonic() - started, error))

        generation.on_close = closed
        return generation

    @contextlib.contextmanager
    def entered(self, tenant: Tenant) -> Iterator[Delivery]:
        """Count work of a tenant that needs no engine among its calls until its answer is taken. Raises ApiError."""
        self._enter(tenant)
        delivery = Delivery(self.settings.request_timeout)
        self._watch(delivery)
        try:
            yield delivery
        finally:
            delivery.release()
            self._open.discard(delivery)
            self._leave(tenant)

    def _watch(self, delivery: Delivery) -> None:
        self._open.add(delivery)
        delivery.report_to(self.answer_memory.add)

    def _enter(self, tenant: Tenant) -> None:
        """Count a call. Raises ApiError 429 where too many are in flight: streams end at any time, after a second
        perhaps."""
        self.counts.enter(tenant.name)
        self._nothing_left.clear()
        try:
            self._check_counts(tenant)
        except ApiError:
            self._leave(tenant)
            raise

    def _check_counts(self, tenant: Tenant) -> None:
        most, others, mine = self.settings.max_streams, self.counts.everywhere - 1, self.counts.of(tenant.name) - 1
        if others >= most:
            raise _too_many(
                f"{counted(others, 'call is', 'calls are')} in flight, and the maximum is {most} (--max-streams)"
            )
        if tenant.max_concurrent is not None and mine >= tenant.max_concurrent:
            of_tenant = counted(mine, f"call of {tenant.name!r} is", f"calls of {tenant.name!r} are")
            raise _too_many(f"{of_tenant} in flight, and its maximum is {tenant.max_concurrent} (max_concurrent)")

    def _leave(self, tenant: Tenant) -> None:
        self.counts.leave(tenant.name)
        if not self.in_flight:
            self._nothing_left.set()


def _too_many(why: str) -> ApiError:
    return ApiError(429, f"{why}; try again in 1 s.", type="rate_limit_error", code="too_many_streams", retry_after=1.0)
