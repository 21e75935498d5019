"""Loads a model in a process of its own, and announces its engine to the API processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from inflight.core.types.sampling import Adapter
from inflight.server.model_pool.resident import ModelNeeds
from inflight.server.processes.messages import Lost, Model, Ready, ToChild
from inflight.server.processes.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolModel:
    """A model that the pool loads and unloads.

    Attributes:
        names: That requests may call it by; the first is its own.
        adapters: That requests may name instead.
        setup: Returns the first message to its process; is given a number that no other process has.
    """

    names: tuple[str, ...]
    adapters: tuple[Adapter, ...]
    needs: ModelNeeds
    setup: Callable[[int], bytes]

    @property
    def name(self) -> str:
        return self.names[0]


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
    """Loads one model after another.

    The process of the next one can be started ahead of its need: importing its modules takes as long as a small
    model's weights.
    """

    def __init__(
        self, spawn: Callable[[], Worker], announce: Callable[[ToChild], None], dropped: Callable[[str], None]
    ):
        """Make a loader.

        Args:
            spawn: Starts a process.
            announce: Sends a message to all API processes.
            dropped: Called with the name of an API process that an engine dropped.
        """
        self._spawn, self._announce, self._dropped = spawn, announce, dropped
        self._spare: Worker | None = None
        self._serials = itertools.count(1)

    def prepare(self) -> None:
        """Start the process of the next load."""
        if self._spare is None:
            self._spare = self._spawn()

    async def load(self, model: PoolModel) -> LoadedModel:
        """Return the model when its engine serves. Raises WorkerError."""
        spare, self._spare = self._spare, None
        worker = spare if spare is not None and spare.is_alive else self._spawn()
        serial = next(self._serials)
        worker.start(model.setup(serial), dropped=self._dropped)
        try:
            found = await worker.found()
            self._announce(Model(found.text, model.name, serial))
            ready = await worker.ready()
        except BaseException:
            self._announce(Lost("The model could not be loaded.", model.name))
            await worker.end()
            raise
        self._announce(Ready(ready.address, ready.engine, ready.adapters, model.name))
        return LoadedModel(model.name, serial, worker, ready.nbytes, self._announce)

    def close(self) -> None:
        if self._spare is not None:
            self._spare.discard()
            self._spare = None
