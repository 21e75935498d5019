"""Loads a model in a process of its own, and announces its engine to the API processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from inflight.server.model_pool.pool_model import PoolModel
from inflight.server.model_pool.worker import Worker, Workers
from inflight.server.processes.messages import Lost, Model, Ready, ToChild


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model in memory.

    Attributes:
        serial: Of its engine's process; no other one has the same.
        nbytes: That the process takes.
        announce: Sends a message to all API processes.
    """

    name: str
    serial: int
    worker: Worker
    nbytes: int
    announce: Callable[[ToChild], None]

    def lose(self, sentence: str) -> None:
        """Have API processes end its calls, since its process has ended. sentence: for their clients."""
        self.announce(Lost(sentence, self.name))

    async def close(self) -> None:
        """Unload the model; return when its memory is free."""
        self.lose("The model was unloaded.")
        await self.worker.end()


class ModelLoader:
    """Loads one model after another, and starts the process of the next one ahead."""

    def __init__(self, workers: Workers, announce: Callable[[ToChild], None], dropped: Callable[[str], None]):
        """Make a loader.

        Args:
            announce: Sends a message to all API processes.
            dropped: Called with the name of an API process that an engine dropped.
        """
        self._workers, self._announce, self._dropped = workers, announce, dropped
        self._serials = itertools.count(1)

    def prepare(self) -> None:
        """Start the process of the next load."""
        self._workers.prepare()

    async def load(self, model: PoolModel) -> LoadedModel:
        """Return the model when its engine serves. Raises WorkerError."""
        serial, worker = next(self._serials), self._workers.take()
        worker.start(model.setup(serial), dropped=self._dropped)
        try:
            found = await worker.found()
            self._announce(Model(found.folder, model.name, serial))
            ready = await worker.ready()
        except BaseException:
            self._announce(Lost("The model could not be loaded.", model.name))
            await worker.end()
            raise
        self._announce(Ready(ready.address, ready.engine, ready.adapters, model.name))
        return LoadedModel(model.name, serial, worker, ready.nbytes, self._announce)

    def close(self) -> None:
        self._workers.close()
