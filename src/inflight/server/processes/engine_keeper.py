"""Keeps a single engine running in a process of its own: starts it, and starts it again when it has ended."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable

from msgspec.structs import replace

from inflight.core.types.sampling import Adapter
from inflight.server.metrics import CONTENT_TYPE
from inflight.server.processes.messages import (
    AdapterChanged,
    Adapters,
    Answer,
    AskFrames,
    AskPage,
    EngineBroken,
    LoadAdapter,
    Loading,
    Lost,
    Model,
    Notice,
    Page,
    PrefixCacheReset,
    Question,
    Ready,
    Refused,
    ResetPrefixCache,
    ShownFrames,
    ToChild,
    UnloadAdapter,
)
from inflight.server.processes.short_lives import MAX_SHORT_LIVES, SHORT_LIFE, ShortLives
from inflight.server.processes.worker import Worker, WorkerError
from inflight.server.processes.worker_messages import EngineReady

RESTARTING = "The engine is being started again; try again in a moment."

log = logging.getLogger("inflight.server")


class EngineKeeper:
    """An `Engines` of one, which runs one engine after another.

    Attributes:
        first_ready: Of the first engine, once it serves.
    """

    def __init__(
        self,
        spawn: Callable[[], Worker],
        setup: Callable[[int], bytes],
        announce: Callable[[ToChild], None],
        dropped: Callable[[str], None],
    ):
        """Make a keeper; the first process is started at once.

        Args:
            spawn: Starts a process.
            setup: Returns its first message; is given the number of processes before it.
            announce: Sends a message to all API processes, and to those that are started later.
            dropped: Called with the name of an API process that the engine dropped.
        """
        self._spawn, self._setup, self._announce, self._dropped = spawn, setup, announce, dropped
        # Of adapters since the first start, the last of each name.
        self._changes: dict[str, LoadAdapter | UnloadAdapter] = {}
        self._worker = spawn()
        self._is_ready, self._lives = False, ShortLives()
        self.first_ready: EngineReady | None = None

    async def run(self) -> None:
        """Keep an engine running.

        Raises:
            WorkerError: The first one could not be loaded (which is logged then), or several ended soon after their
                start.
        """
        for serial in itertools.count():
            was_ready = await self._run_one(serial)
            if not was_ready and not serial:
                raise WorkerError("", self._worker.exit_code)
            if (pause := self._lives.end()) is None:
                raise WorkerError(
                    f"The engine ended {MAX_SHORT_LIVES} times before it was ready or within {SHORT_LIFE:g} s after; "
                    "the server exits."
                )
            log.info("The engine is restarted.")
            await asyncio.sleep(pause)
            self._worker = self._spawn()

    async def _run_one(self, serial: int) -> bool:
        """Run the process until it ends; return whether its engine was ready."""
        worker, self._serial = self._worker, serial
        worker.start(self._setup(serial), lambda doing: self._announce(Loading(doing)), dropped=self._dropped)
        try:
            self._announce(Model((await worker.found()).text, serial=serial))
            ready = await worker.ready()
            adapters = await self._change_again(worker, ready.adapters)
            self._is_ready = True
            self._lives.ready()
            self._announce(Ready(ready.address, ready.engine, adapters))
            self.first_ready = self.first_ready or ready
        except WorkerError:
            pass  # it has ended, as the next line says
        why = await asyncio.shield(worker.ended)
        was_ready, self._is_ready = self._is_ready, False
        if not was_ready and not serial:
            if worker.failed is None:
                log.error(why)
            return False
        if worker.failed is None:
            log.error(why)
        self._announce(Lost(why))
        self._announce(Loading("starting the engine again"))
        return was_ready

    async def end(self) -> None:
        await self._worker.end()

    async def answer(self, client: str, question: Question) -> Answer:
        """Answer a question of an API process."""
        number = question.question
        match question:
            case AskPage():
                return Page(number, await self._worker.metrics(), CONTENT_TYPE)
            case AskFrames():
                return ShownFrames(number, await self._worker.shown(question.data))
            case LoadAdapter() | UnloadAdapter():
                return await self._change_adapter(question)
            case ResetPrefixCache():
                reset = await self._worker.reset_prefix_cache() if self._is_ready else None
                return PrefixCacheReset(number, error=RESTARTING) if reset is None else replace(reset, question=number)
            case _:
                return Refused(number, 400, "This server has one model, which is always loaded.")

    def heard(self, client: str, notice: Notice) -> None:
        """Pass on what the engine's metrics count; kill an engine that answers no more."""
        if not isinstance(notice, EngineBroken):
            self._worker.count(notice)
        elif notice.serial == self._serial:
            self._worker.break_off(notice.sentence)

    def client_lost(self, client: str) -> None:
        """Abort the requests of an API process that has ended."""
        self._worker.client_lost(client)

    async def _change_adapter(self, question: LoadAdapter | UnloadAdapter) -> AdapterChanged:
        """Load or unload an adapter, in the engines to come, too."""
        number = question.question
        changed = await self._worker.change_adapter(question) if self._is_ready else None
        if changed is None:
            return AdapterChanged(number, error=RESTARTING)
        if changed.error is None:
            self._changes[question.name] = question
            self._announce(Adapters(changed.adapters))
        return replace(changed, question=number)

    async def _change_again(self, worker: Worker, adapters: tuple[Adapter, ...]) -> tuple[Adapter, ...]:
        """Load and unload adapters as in the engine before, and log those that cannot be; return all that there are.
        Raises WorkerError where the engine ends."""
        for name, change in tuple(self._changes.items()):
            is_known = any(one.name == name for one in adapters)  # from the start, and of other files perhaps
            steps: list[LoadAdapter | UnloadAdapter] = [UnloadAdapter(0, name)] if is_known else []
            steps += [change] if isinstance(change, LoadAdapter) else []
            for step in steps:
                if (changed := await worker.change_adapter(step)) is None:
                    raise WorkerError("the engine has ended meanwhile")
                if changed.error is None:
                    adapters = changed.adapters
                else:
                    log.error(f"The adapter {name!r} could not be loaded again after the restart: {changed.error}")
                    self._changes.pop(name, None)
        return adapters
