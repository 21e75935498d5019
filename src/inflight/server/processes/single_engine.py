"""The only engine, as an API process sees it: it is connected to, and to the next one when it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from inflight.core.types.sampling import Adapter
from inflight.engine.event_stream import EngineStopped
from inflight.server.errors import ApiError, invalid
from inflight.server.live.sources import FeedSource
from inflight.server.preprocessing.pool import PreprocessingPool
from inflight.server.processes.engine_link import Connector, EngineLink
from inflight.server.processes.messages import (
    AdapterChanged,
    Adapters,
    EngineBroken,
    FromChild,
    LoadAdapter,
    Lost,
    Model,
    OfEngines,
    Ready,
    Setup,
    UnloadAdapter,
    Up,
)
from inflight.server.processes.pending_replies import PendingReplies
from inflight.server.served import OneModel, ServedEngine
from inflight.server.service import Service


class SingleEngine:
    """One engine after another, all of the same model. An `AdapterLoading`."""

    def __init__(
        self,
        setup: Setup,
        service: Service,
        preprocessing: PreprocessingPool,
        send: Callable[[FromChild], None],
        feed: FeedSource,
    ):
        """feed: what the live page shows."""
        self._setup, self._service, self._preprocessing, self._send = setup, service, preprocessing, send
        self._connector = Connector(setup.serial)
        self._link: EngineLink | None = None
        self._adapters: tuple[Adapter, ...] | None = None  # those of `Ready` have changed to these
        self.serial: int | None = None  # of the last engine that was connected
        self._links: asyncio.Queue[EngineLink | None] = asyncio.Queue()  # in their order; None: there will be no more
        self._changes = PendingReplies[AdapterChanged]()
        self.feed = feed

    async def open(self) -> OneModel:
        """Wait for the next engine. Raises EngineStopped where there will be none, PreprocessingError."""
        while (link := await self._links.get()) is not None:
            if (served := await link.connected()) is not None:
                if self._adapters is not None:
                    served.translator.adapters.replace(self._adapters)
                self.serial = link.serial
                return OneModel(served, self)
        raise EngineStopped(self._gone)

    async def follow(self) -> None:
        """Connect to the engines that come after the first one. Raises as `open`."""
        while True:
            self._service.ready(await self.open())
            self._send(Up(self.serial))

    def heard(self, message: OfEngines) -> None:
        """Take a message of the server's first process."""
        match message:
            case Model():
                self._adapters = None
                self._link = EngineLink(message, self._connect)
                self._links.put_nowait(self._link)
            case Ready():
                if self._link is not None:
                    self._link.ready(message)
            case Lost():
                self._lose(message.sentence)
            case Adapters():
                self._adapters = message.adapters
                if isinstance(models := self._service.loaded, OneModel):
                    models.served.translator.adapters.replace(message.adapters)
            case AdapterChanged():
                self._changes.came(message.question, message)
            case _:
                raise ValueError(f"{type(message).__name__} is of a server with several models")

    def gone(self, sentence: str) -> None:
        """End all calls, since the server's first process has ended."""
        self._gone = sentence
        self._lose(sentence)
        self._links.put_nowait(None)
        self._changes.end(EngineStopped(sentence))

    # -- adapters -------------------------------------------------------------------------------------------------

    async def load_adapter(self, name: str, path: Path) -> None:
        """Let requests name an adapter, in all processes. Raises ApiError."""
        error, param = await self._change(lambda question: LoadAdapter(question, name, path))
        if error is not None:
            raise invalid(error, param)

    async def unload_adapter(self, name: str) -> None:
        """Let no request name an adapter any more. Raises ApiError."""
        error, param = await self._change(lambda question: UnloadAdapter(question, name))
        if error is not None:
            raise ApiError(404, error, param=param, code="model_not_found")

    async def _change(self, make: Callable[[int], LoadAdapter | UnloadAdapter]) -> tuple[str | None, str | None]:
        """Return the error of a change and the field that is to blame. Raises ApiError where there is no engine now."""
        changed = await self._changes.ask(lambda question: self._send(make(question)))
        if changed.error is not None and changed.is_fault:
            raise ApiError(500, changed.error, type="server_error", code="internal_error")
        if changed.error is not None and changed.param is None:
            raise ApiError(503, changed.error, type="server_error", code="loading", retry_after=1.0)
        return changed.error, changed.param

    # -- the engine -----------------------------------------------------------------------------------------------

    async def _connect(self, model: Model, ready: Awaitable[Ready]) -> ServedEngine:
        settings, stopped = self._setup.server.settings, partial(self._stopped, model.serial)
        return await self._connector.connect(model, ready, settings, self._preprocessing, stopped)

    def _stopped(self, serial: int, sentence: str, is_broken: bool) -> None:
        """Take note that an engine has stopped, unless the server's first process has reported its end already."""
        if self._link is not None and self._link.serial == serial:
            if is_broken:
                self._send(EngineBroken("", serial, sentence))
            self._lose(sentence)

    def _lose(self, sentence: str) -> None:
        """End the calls of an engine that has ended."""
        link, self._link = self._link, None
        self._service.lose_engine()
        if link is not None:
            link.lose(sentence)
