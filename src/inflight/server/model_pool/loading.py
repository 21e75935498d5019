"""How a model comes into memory: its process and the preprocessing beside it, until both can serve calls.

Knows the order of things; which model, and when, `pool` knows. What is loaded in the process, that process knows.
"""

from __future__ import annotations

import itertools
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from inflight.engine.remote.client import RemoteClient
from inflight.server.engine_description import decode_description
from inflight.server.loader import LOADER, in_own_thread
from inflight.server.loading import make_prompts, make_served
from inflight.server.model_pool.messages import EngineReady
from inflight.server.model_pool.pool_model import PoolModel
from inflight.server.model_pool.worker import Worker, WorkerError, Workers
from inflight.server.preprocessing.lane import PreprocessingError
from inflight.server.preprocessing.pool import PreprocessingPool
from inflight.server.preprocessing.worker import loaded
from inflight.server.served import Served
from inflight.text import ChatTemplate, Tokenizer

Text = tuple[Tokenizer | None, ChatTemplate | None]


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """nbytes: that its process takes."""

    served: Served
    worker: Worker
    client: RemoteClient
    nbytes: int

    async def lost(self, sentence: str) -> None:
        """Its process is gone: those that wait for it are told."""
        self.client.stop(sentence)
        await self.served.close()

    async def close(self) -> None:
        """Returns when its memory is free."""
        try:
            await self.served.close()
        finally:
            await self.worker.end()


class ModelLoader:
    """Keeps tokenizers and templates of what was loaded once, and a process of each kind ahead."""

    def __init__(self, workers: Workers):
        self._workers = workers
        self._serials = itertools.count(1)
        self._texts: dict[Path, Text] = {}
        self._spare: PreprocessingPool | None = None

    def prepare(self) -> None:
        """For the next load."""
        self._workers.prepare()
        self._spare = self._spare or PreprocessingPool()

    async def load(self, model: PoolModel) -> LoadedModel:
        """Raises WorkerError."""
        serial = next(self._serials)
        setup, worker = model.setup(serial), self._workers.take()
        worker.start(setup)
        async with AsyncExitStack() as undone:
            undone.push_async_callback(worker.end)
            preprocessing = self._preprocessing()
            undone.push_async_callback(preprocessing.close)
            try:
                found = await worker.found()
                preprocessing.load(found.folder)
                text = await self._text(found.folder)
                ready = await worker.ready()
                client = RemoteClient(ready.address, str(serial))
                undone.callback(client.close)
                make = partial(_served, model, ready, client, preprocessing, serial, text)
                served = await in_own_thread(make, LOADER)
            except (PreprocessingError, ValueError) as error:
                raise WorkerError(str(error)) from error
            undone.pop_all()
        return LoadedModel(served, worker, client, ready.nbytes)

    def _preprocessing(self) -> PreprocessingPool:
        """The one ahead, unless it was killed."""
        spare, self._spare = self._spare, None
        return spare if spare is not None and spare.is_alive else PreprocessingPool()

    async def close(self) -> None:
        self._workers.close()
        if self._spare is not None:
            await self._spare.close()

    async def _text(self, folder: Path) -> Text:
        if folder not in self._texts:
            self._texts[folder] = await in_own_thread(partial(loaded, folder), "inflight-text")
        return self._texts[folder]


def _served(
    model: PoolModel,
    ready: EngineReady,
    client: RemoteClient,
    preprocessing: PreprocessingPool,
    serial: int,
    text: Text,
) -> Served:
    """Wait until the preprocessing has loaded, and put the parts together. Raises PreprocessingError."""
    engine = decode_description(ready.engine)
    prompts = make_prompts(*text, engine, serial)
    return make_served(model.settings, engine, client, preprocessing, prompts, text[0])
