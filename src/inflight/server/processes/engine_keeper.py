"""Keeps an engine running in a process of its own: starts it, and starts it again when it has ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from inflight.core.types.sampling import Adapter
from inflight.server.model_pool.messages import EngineReady
from inflight.server.model_pool.worker import Worker, WorkerError
from inflight.server.processes.messages import (
    AdapterChanged,
    Adapters,
    LoadAdapter,
    Loading,
    Lost,
    Model,
    Ready,
    ToChild,
    UnloadAdapter,
)

SHORT_LIFE = 10.0  # seconds; an engine that ends sooner is not started again at once
MAX_SHORT_LIVES = 5  # one after another, until the server ends
MAX_PAUSE = 5.0  # seconds before the next start

AdapterChange = Callable[[int], LoadAdapter | UnloadAdapter]  # makes the message, by its number

log = logging.getLogger("inflight.server")


class EngineKeeper:
    """Runs one engine after another. Lives in the supervisor's event loop."""

    def __init__(
        self,
        spawn: Callable[[], Worker],
        setup: Callable[[int], bytes],
        tell_all: Callable[[ToChild], None],
        dropped: Callable[[str], None],
        ready: Callable[[EngineReady], None],
    ):
        """Make a keeper; the first process is started at once.

        Args:
            spawn: Starts a process.
            setup: Returns its first message; is given the number of processes before it.
            tell_all: Sends a message to all API processes, and to those that are started later.
            dropped: Called with the name of an API process that the engine dropped.
            ready: Called whenever an engine serves.
        """
        self._spawn, self._setup, self._tell_all = spawn, setup, tell_all
        self._dropped, self._ready = dropped, ready
        self._changes: dict[str, AdapterChange] = {}  # of adapters since the first start, the last of each name
        self.worker = spawn()
        self.is_ready = False

    async def run(self) -> None:
        """Keep an engine running.

        Raises:
            WorkerError: The first one could not be loaded (which is logged then), or several ended soon after their
                start.
        """
        serial = short_lives = 0
        while True:
            started = time.monotonic()
            was_ready = await self._run_one(serial)
            serial += 1
            short_lives = short_lives + 1 if time.monotonic() - started < SHORT_LIFE else 0
            if not was_ready and serial == 1:
                raise WorkerError("")
            if short_lives >= MAX_SHORT_LIVES:
                raise WorkerError(f"The engine ended {short_lives} times soon after its start; the server ends.")
            await asyncio.sleep(min(0.1 * 4**short_lives, MAX_PAUSE) if short_lives > 1 else 0.0)
            self.worker = self._spawn()

    async def _run_one(self, serial: int) -> bool:
        """Run the process until it ends; return whether its engine was ready."""
        worker = self.worker
        worker.start(self._setup(serial), lambda doing: self._tell_all(Loading(doing)), self._dropped)
        try:
            self._tell_all(Model((await worker.found()).folder))
            ready = await worker.ready()
            adapters = await self._change_again(worker, ready.adapters)
            self.is_ready = True
            self._tell_all(Ready(ready.address, ready.engine, adapters))
            self._ready(ready)
        except WorkerError:
            pass  # it has ended, as the next line says
        why = await asyncio.shield(worker.ended)
        was_ready, self.is_ready = self.is_ready, False
        if not was_ready and not serial:
            if worker.failed is None:
                log.error(why)
            return False
        log.error("The engine is started again." if worker.failed is not None else f"{why} It is started again.")
        self._tell_all(Lost(why))
        self._tell_all(Loading("starting the engine again"))
        return was_ready

    async def change_adapter(self, name: str, change: AdapterChange) -> AdapterChanged | None:
        """Load or unload an adapter, in the engines to come, too; None where there is no engine now."""
        changed = await self.worker.change_adapter(change) if self.is_ready else None
        if changed is not None and changed.error is None:
            self._changes[name] = change
            self._tell_all(Adapters(changed.adapters))
        return changed

    async def _change_again(self, worker: Worker, adapters: tuple[Adapter, ...]) -> tuple[Adapter, ...]:
        """Load and unload the adapters that were in the engine before; return all that there are."""
        for change in self._changes.values():
            if (changed := await worker.change_adapter(change)) is not None:
                adapters = changed.adapters
        return adapters
