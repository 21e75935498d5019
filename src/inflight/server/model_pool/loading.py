"""How a model comes into memory: its process and the preprocessing beside it, until both can serve calls.

Knows the order of things; which model, and when, `pool` knows. What is loaded in the process, that process knows.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from inflight.engine.remote.client import RemoteClient
from inflight.frontend.prompts import PromptEncoder
from inflight.server.loading import make_served
from inflight.server.model_pool.messages import Ready
from inflight.server.model_pool.pool_model import PoolModel
from inflight.server.model_pool.worker import Worker, WorkerError, Workers
from inflight.server.offload import in_own_thread
from inflight.server.preprocessing.pool import PreprocessingError, PreprocessingPool
from inflight.server.preprocessing.worker import loaded
from inflight.server.served import Served
from inflight.text import ChatTemplate, Tokenizer

Text = tuple[Tokenizer | None, ChatTemplate | None]
SERIAL_SHIFT = 40  # bits of a load's own numbers for requests without a seed, below its serial number


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
        await self.served.close()
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
        preprocessing, self._spare = self._spare or PreprocessingPool(), None
        worker = self._workers.take()
        worker.start(model.setup(serial))
        try:
            found = await worker.found()
            preprocessing.load(found.folder)
            text = await self._text(found.folder)
            ready = await worker.ready()
            client = RemoteClient(ready.address, str(serial))
            make = partial(_served, model, ready, client, preprocessing, serial, text)
            served = await in_own_thread(make, "inflight-loader")
        except BaseException as error:
            await preprocessing.close()
            await worker.end()
            if isinstance(error, PreprocessingError | ValueError):
                raise WorkerError(str(error)) from error
            raise
        return LoadedModel(served, worker, client, ready.nbytes)

    async def close(self) -> None:
        self._workers.close()
        if self._spare is not None:
            await self._spare.close()

    async def _text(self, folder: Path) -> Text:
        if folder not in self._texts:
            self._texts[folder] = await in_own_thread(partial(loaded, folder), "inflight-text")
        return self._texts[folder]


def _served(
    model: PoolModel, ready: Ready, client: RemoteClient, preprocessing: PreprocessingPool, serial: int, text: Text
) -> Served:
    """Waits until the preprocessing has loaded. Raises PreprocessingError."""
    (tokenizer, template), engine = text, ready.engine
    first, of_pairs = serial << SERIAL_SHIFT, engine.text_prompts.of_pairs
    prompts = PromptEncoder(tokenizer, template, engine.seed, first=first, pair_template=of_pairs)
    return make_served(model.settings, engine, client, preprocessing, prompts, tokenizer)
