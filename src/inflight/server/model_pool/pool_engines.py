"""The engines of several models, as the server's first process asks them: leases of API processes, metrics, states."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable

from inflight.server.common.aliases import served_name
from inflight.server.errors import ApiError
from inflight.server.loader import log_failure
from inflight.server.metrics import CONTENT_TYPE
from inflight.server.metrics.pool_page import PoolMetrics
from inflight.server.model_pool.pool import ModelPool, PoolLease
from inflight.server.processes.counts import record_count
from inflight.server.processes.messages import (
    Acquire,
    Acquired,
    AdapterChanged,
    Answer,
    AskFrames,
    AskModels,
    AskPage,
    EngineBroken,
    FindModels,
    LoadAdapter,
    Loading,
    LoadModel,
    ModelStatuses,
    Notice,
    Page,
    PoolChanged,
    PooledModel,
    PoolReady,
    PrefixCacheReset,
    Question,
    Refused,
    Release,
    ResetPrefixCache,
    ShownFrames,
    ToChild,
    UnloadAdapter,
    UnloadModel,
)
from inflight.server.processes.worker import WorkerError

LOOK_SECONDS = 2.0  # between two looks at the models on this machine, which read folders

log = logging.getLogger("inflight.server")


class PoolEngines:
    """An `Engines` of several models."""

    first_ready = None

    def __init__(
        self,
        make: Callable[[], ModelPool],
        metrics: PoolMetrics,
        announce: Callable[[ToChild], None],
        find: Callable[[ModelPool], Awaitable[tuple[PooledModel, ...]]] | None = None,
    ):
        """Make the engines.

        Args:
            make: Returns the pool; called in a thread, since it reads the models' files.
            metrics: Count what API processes report.
            announce: Sends a message to all API processes, and to those that are started later.
            find: Adds models that have come to this machine, removes those that have gone, and returns all; None: the
                pool's models stay the same.
        """
        self._make, self._metrics, self._announce, self._find = make, metrics, announce, find
        self._finding, self._looked = asyncio.Lock(), -math.inf
        self._pool: ModelPool | None = None
        # By the API process and the number of its question.
        self._acquiring: dict[tuple[str, int], asyncio.Future[Answer]] = {}
        self._leases: dict[tuple[str, int], PoolLease] = {}

    async def run(self) -> None:
        """Load the pinned models, and keep all available. Raises WorkerError where the first part fails."""
        self._announce(Loading("looking at the models"))
        try:
            self._pool = self._metrics.pool = await asyncio.to_thread(self._make)
        except Exception as error:
            log_failure(str(error), error)
            raise WorkerError("") from error
        self._announce(Loading("loading the pinned models"))
        await self._pool.open()
        self._announce(PoolReady())
        await asyncio.Event().wait()

    async def end(self) -> None:
        if self._pool is not None:
            await self._pool.close()

    def answer(self, client: str, question: Question) -> Awaitable[Answer]:
        """Answer a question of an API process."""
        assert self._pool is not None, "asked when the pinned models are there"
        answer = self._answer(self._pool, client, question)
        if not isinstance(question, Acquire):
            return answer
        # Entered before it runs: the call's `Release` may be heard before that.
        key = client, question.question
        task = self._acquiring[key] = asyncio.ensure_future(answer)
        task.add_done_callback(lambda _: self._acquiring.pop(key))
        return task

    async def _answer(self, pool: ModelPool, client: str, question: Question) -> Answer:
        number = question.question
        try:
            match question:
                case Acquire():
                    await self._look_for(pool, question.name)
                    lease = self._leases[client, number] = await pool.acquire(question.name, question.keep_alive)
                    return Acquired(number, lease.name, lease.serial)
                case AskPage():
                    return await self._page(number)
                case AskFrames():
                    return ShownFrames(number, await pool.shown(question.data))
                case AskModels():
                    await self._look_again(pool)
                    return ModelStatuses(number, pool.statuses())
                case FindModels():
                    await self._look_again(pool, since=0.0)
                    return ModelStatuses(number, pool.statuses())
                case LoadModel():
                    await self._look_for(pool, question.name)
                    return ModelStatuses(number, (await pool.load(question.name),))
                case UnloadModel():
                    return ModelStatuses(number, (pool.unload(question.name),))
                case ResetPrefixCache():
                    return PrefixCacheReset(number, *await pool.reset_prefix_caches())
                case LoadAdapter() | UnloadAdapter():
                    return AdapterChanged(number, error="Adapters of several models are named at the start.")
        except ApiError as error:
            return Refused(number, error.status, error.message, error.type, error.param, error.code, error.retry_after)

    async def _look_for(self, pool: ModelPool, name: str | None) -> None:
        if name is not None and served_name(name, pool.names) is None:
            await self._look_again(pool)

    async def _look_again(self, pool: ModelPool, since: float = LOOK_SECONDS) -> None:
        """Take note of models that other programs have pulled or deleted, unless that was done `since` seconds ago."""
        if self._find is None:
            return
        async with self._finding:
            if time.monotonic() - self._looked >= since:
                try:
                    self._announce(PoolChanged(await self._find(pool)))
                except (OSError, ValueError):  # files change meanwhile; the models stay as they were
                    log.exception("the models on this machine could not be looked at")
                self._looked = time.monotonic()

    def heard(self, client: str, notice: Notice) -> None:
        """Take what an API process reports."""
        match notice:
            case Release():
                self._release((client, notice.question))
            case EngineBroken():
                if self._pool is not None:
                    self._pool.break_off(notice.name, notice.serial, notice.sentence)
            case _:
                record_count(notice, self._metrics)

    def client_lost(self, client: str) -> None:
        """End the calls and leases of an API process that has ended."""
        for key in [key for key in (*self._acquiring, *self._leases) if key[0] == client]:
            self._release(key)
        if self._pool is not None:
            self._pool.client_lost(client)

    def _release(self, key: tuple[str, int]) -> None:
        if (lease := self._leases.pop(key, None)) is not None:
            lease.release()
        elif (task := self._acquiring.get(key)) is not None:
            task.cancel()

    async def _page(self, question: int) -> Page:
        try:
            return Page(question, *await self._metrics.page())
        except Exception:  # a mistake in counting is no reason to stop
            log.exception("the metrics could not be written")
            return Page(question, None, CONTENT_TYPE)
