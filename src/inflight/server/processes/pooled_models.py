"""Several models, as an API process sees them: it acquires one for each call from the server's first process, and is
connected to the engine of each that is in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from inflight.engine.event_stream import EngineStopped
from inflight.server.errors import ApiError
from inflight.server.live.remote_engines import Page, RemoteEnginesSource
from inflight.server.loader import log_failure
from inflight.server.model_status import ModelStatus
from inflight.server.preprocessing.pool import PreprocessingPool
from inflight.server.processes.engine_link import Connector, EngineLink
from inflight.server.processes.messages import (
    Acquire,
    Acquired,
    AskModels,
    EngineBroken,
    FindModels,
    FromChild,
    LoadModel,
    Lost,
    Model,
    ModelStatuses,
    OfEngines,
    PoolChanged,
    PooledModel,
    PoolReady,
    Ready,
    Refused,
    Release,
    Setup,
    UnloadModel,
)
from inflight.server.processes.pending_replies import PendingReplies
from inflight.server.served import ListedModel, ModelLease, ServedEngine

# From a connection until the preprocessing of the next one is started ahead, which takes a core for a third of a
# second: calls that waited come first.
PREPARE_SECONDS = 3.0
ENDED = "The model's process has ended."


class PooledModels:
    """A `ServedModels` of which only some are in memory, and a `ModelResidency`."""

    stopped = None  # a model that crashes is loaded again
    serial = None  # as `Up` has it

    def __init__(
        self,
        setup: Setup,
        preprocessing: PreprocessingPool,
        send: Callable[[FromChild], None],
        page: Page,
        ask_frames: Callable[[bytes], Awaitable[Mapping[str, bytes]]],
    ):
        """preprocessing: of the first model that is loaded."""
        self._models = {one.name: one for one in setup.server.models}
        self._send = send
        self._connector = Connector(setup.serial)
        self._spare: PreprocessingPool | None = preprocessing
        self._links: dict[str, EngineLink] = {}  # to engines that are in memory, or being loaded
        self._replies = PendingReplies[Acquired | ModelStatuses]()
        self._is_open, self._is_gone = asyncio.Event(), asyncio.Event()
        self._why_gone, self._is_closed = "", False
        self._closing: set[asyncio.Task[None]] = set()
        self.feed = RemoteEnginesSource(page, "model_name", "models", ask_frames)

    async def open(self) -> PooledModels:
        """Wait until the pinned models are in memory. Raises EngineStopped, PreprocessingError."""
        await self._is_open.wait()
        self._check_gone()
        for link in tuple(self._links.values()):
            await link.connected()
        return self

    async def follow(self) -> None:
        """Wait for the end of the server's first process. Raises EngineStopped then."""
        await self._is_gone.wait()
        self._check_gone()

    def heard(self, message: OfEngines) -> None:
        """Take a message of the server's first process."""
        match message:
            case Model():
                self._links[message.name] = EngineLink(message, partial(self._connect, self._models[message.name]))
            case Ready():
                if (link := self._links.get(message.name)) is not None:
                    link.ready(message)
            case Lost():
                if (link := self._links.pop(message.name, None)) is not None:
                    self._lose(link, message.sentence)
            case PoolChanged():
                left = {name: self._models[name] for name in self._links}
                self._models = left | {one.name: one for one in message.models}
            case PoolReady():
                self._is_open.set()
            case Acquired() | ModelStatuses():
                self._replies.came(message.question, message)
            case Refused():
                self._replies.came(message.question, message.error())
            case _:
                raise ValueError(f"{type(message).__name__} is of a server with one model")

    def gone(self, sentence: str) -> None:
        """End all calls, since the server's first process has ended."""
        self._why_gone = sentence
        self._is_open.set()
        self._is_gone.set()
        for link in self._links.values():
            link.lose(sentence)
        self._replies.end(ApiError(500, sentence, type="server_error", code="engine_stopped"))

    # -- `ServedModels` -------------------------------------------------------------------------------------------

    @property
    def residency(self) -> PooledModels:
        return self

    async def listed(self) -> Sequence[ListedModel]:
        found: list[ListedModel] = []
        for status in await self._ask(AskModels):
            if (model := self._models.get(status.name)) is None:
                continue  # it has come, or gone, meanwhile
            served = await self._served(status)
            found += [
                ListedModel(name, model.name, None, served, status, model.path, model.is_found) for name in model.names
            ]
            found += [ListedModel(own.name, model.name, own, served, status, model.path) for own in model.adapters]
        return found

    async def acquire(self, name: str | None, keep_alive: float | None = None) -> ModelLease:
        asked = -1  # the question's number, once it is sent

        def put(question: int) -> None:
            nonlocal asked
            asked = question
            self._send(Acquire(question, name, keep_alive))

        try:
            acquired = await self._replies.ask(put)
            assert isinstance(acquired, Acquired)
            return ModelLease(await self._connected(acquired), partial(self._send, Release(asked)))
        except BaseException:
            if asked >= 0:
                self._send(Release(asked))
            raise

    def refuse(self, error: ApiError) -> None:
        self._replies.end(error)

    async def close(self) -> None:
        self._is_closed = True
        for link in self._links.values():
            self._lose(link, "The server was closed.")
        self._links.clear()
        if self._spare is not None:
            await self._spare.close()
        await asyncio.gather(*self._closing, return_exceptions=True)

    # -- `ModelResidency` -----------------------------------------------------------------------------------------

    async def load(self, name: str) -> ModelStatus:
        [status] = await self._ask(lambda question: LoadModel(question, name))
        if (link := self._links.get(status.name)) is not None:
            await link.connected()
        return status

    async def unload(self, name: str) -> ModelStatus:
        [status] = await self._ask(lambda question: UnloadModel(question, name))
        return status

    async def find(self) -> None:
        await self._ask(FindModels)

    # -- engines --------------------------------------------------------------------------------------------------

    async def _ask(self, question: Callable[[int], FromChild]) -> tuple[ModelStatus, ...]:
        """Raises ApiError."""
        answer = await self._replies.ask(lambda number: self._send(question(number)))
        assert isinstance(answer, ModelStatuses)
        return answer.statuses

    async def _served(self, status: ModelStatus) -> ServedEngine | None:
        """Return a model that is in memory, even where this process connects to its engine later than others; None
        where it is not, or cannot be served here."""
        link = self._links.get(status.name)
        if link is None or status.state != "loaded":
            return None if link is None else link.served
        return await link.once_connected()

    async def _connected(self, acquired: Acquired) -> ServedEngine:
        """Return the model when this process is connected to its engine. Raises ApiError."""
        name, link = acquired.name, self._links.get(acquired.name)
        if link is None or link.serial != acquired.serial:
            raise _broken(name, ENDED)
        try:
            served = await link.connected()
        except Exception as error:
            raise _failed(name, str(error)) from error
        if served is None:
            raise _broken(name, ENDED)
        if (why := served.bridge.stopped) is not None:  # the first process may not know of it
            self._send(EngineBroken(name, link.serial, why))
            raise _broken(name, why)
        return served

    async def _connect(self, model: PooledModel, message: Model, ready: Awaitable[Ready]) -> ServedEngine:
        spare, self._spare = self._spare, None
        preprocessing = spare if spare is not None and spare.is_alive else PreprocessingPool()
        try:
            served = await self._connector.connect(message, ready, model.settings, preprocessing)
        except BaseException as error:
            if isinstance(error, Exception):
                log_failure(f"The model {model.name!r} cannot be served by an API process: {error}", error)
            await preprocessing.close()
            raise
        asyncio.get_running_loop().call_later(PREPARE_SECONDS, self._prepare)
        return served

    def _prepare(self) -> None:
        """Start the preprocessing of the next model ahead, if there may be one."""
        if self._spare is None and len(self._links) < len(self._models) and not self._is_closed:
            self._spare = PreprocessingPool()

    def _lose(self, link: EngineLink, sentence: str) -> None:
        """End the calls of an engine that has ended, and what was connected to it."""
        if (served := link.lose(sentence)) is not None:
            task = asyncio.get_running_loop().create_task(served.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _check_gone(self) -> None:
        """Raises EngineStopped."""
        if self._why_gone:
            raise EngineStopped(self._why_gone)


def _broken(name: str, why: str) -> ApiError:
    return ApiError(
        503,
        f"The model {name!r} has crashed: {why} It is reloaded at the next call; try again in 1 s.",
        type="server_error",
        code="model_failed",
        retry_after=1.0,
    )


def _failed(name: str, why: str) -> ApiError:
    return ApiError(
        503,
        f"The model {name!r} cannot be loaded: {why} It is tried again in 1 s at the earliest.",
        type="server_error",
        code="model_failed",
        retry_after=1.0,
    )
