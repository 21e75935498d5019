"""An API process's connection to an engine: tokenizer, preprocessing and client, which begin while the engine loads."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from msgspec.structs import replace

from inflight.engine.event_stream import set_outcome
from inflight.engine.remote.client import OnStop, RemoteClient
from inflight.server.engine_description import decode_description
from inflight.server.loader import LOADER, in_own_thread
from inflight.server.loading import make_prompts, make_served
from inflight.server.preprocessing.pool import PreprocessingPool
from inflight.server.processes.messages import Model, Ready
from inflight.server.served import ServedEngine
from inflight.server.settings import ServerSettings
from inflight.text import ChatTemplate, TextFiles, Tokenizer

LINK_BITS = 16  # links of a process, each with numbers of its own for requests without a seed

Connect = Callable[[Model, Awaitable[Ready]], Coroutine[Any, Any, ServedEngine]]


class Connector:
    """Connects an API process to engines, and keeps the tokenizers and templates that it has loaded."""

    def __init__(self, serial: int):
        """serial: of the process; no other one has the same."""
        self._client = str(serial)
        self._serials = itertools.count(serial << LINK_BITS)
        self._texts: dict[TextFiles, tuple[Tokenizer | None, ChatTemplate | None]] = {}

    async def connect(
        self,
        model: Model,
        ready: Awaitable[Ready],
        settings: ServerSettings,
        preprocessing: PreprocessingPool,
        on_stop: OnStop = lambda sentence, is_broken: None,
    ) -> ServedEngine:
        """Return the model when its engine serves and its preprocessing has loaded.

        Args:
            model: The message about it.
            ready: Returns the message that its engine serves.
            settings: Of its answers.
            preprocessing: Loads the model's tokenizer, unless it has.
            on_stop: Called when the engine has stopped.

        Raises:
            PreprocessingError: The preprocessing could not be started.
        """
        preprocessing.load(model.text)
        if model.text not in self._texts:
            self._texts[model.text] = await in_own_thread(model.text.load_if_any, LOADER)
        tokenizer, template = self._texts[model.text]
        serves = await ready
        engine = replace(decode_description(serves.engine), adapters=serves.adapters)
        prompts = make_prompts(tokenizer, template, engine, next(self._serials))
        prompts.check_chat()
        client = RemoteClient(serves.address, self._client, on_stop)
        make = partial(make_served, settings, engine, client, preprocessing, prompts, tokenizer, model.text.model)
        try:
            return await in_own_thread(make, LOADER)
        except BaseException:
            client.close()
            raise


class EngineLink:
    """The connection to one engine, from its loading to its end.

    Attributes:
        serial: Of the engine's process.
    """

    def __init__(self, model: Model, connect: Connect):
        self.serial = model.serial
        self._model, self._connect = model, connect
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._is_lost = False
        self._start()

    def ready(self, message: Ready) -> None:
        """Connect to the engine, which serves now."""
        set_outcome(self._ready, message)

    @property
    def fault(self) -> BaseException | None:
        """Return why the last connection has failed."""
        done = self._connecting.done() and not self._connecting.cancelled()
        return self._connecting.exception() if done else None

    @property
    def served(self) -> ServedEngine | None:
        """Return the model, if it is connected."""
        connecting = self._connecting
        is_there = connecting.done() and not connecting.cancelled() and not self._is_lost and self.fault is None
        return connecting.result() if is_there else None

    async def connected(self) -> ServedEngine | None:
        """Return the model when it is connected; None where its engine has ended. Raises PreprocessingError."""
        if self.fault is not None and not self._is_lost:
            self._start()
        await asyncio.wait((self._connecting,))
        return None if self._is_lost else self._connecting.result()

    async def once_connected(self) -> ServedEngine | None:
        """Return the model when connecting has ended; None where it has failed, or the engine has ended."""
        await asyncio.wait((self._connecting,))
        return self.served

    def lose(self, sentence: str) -> ServedEngine | None:
        """End the calls of an engine that has ended, with this reason; return the model, if it was connected."""
        served, self._is_lost = self.served, True
        self._connecting.cancel()
        if served is not None:
            assert isinstance(served.bridge, RemoteClient)
            served.bridge.stop(sentence)
            served.bridge.close()
        return served

    def _start(self) -> None:
        self._connecting = asyncio.get_running_loop().create_task(self._connect(self._model, self._ready))
